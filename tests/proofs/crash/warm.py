"""The lab of the crash matrix as its children inherit it: all that they need is loaded, and nothing of it is open."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

from droveway.clients.embedded import placement
from droveway.clients.embedded.cloud import embedded_cloud
from droveway.lab.session import Lab


def open_lab(root: Path, on_request: Callable[[str, str], None] | None = None) -> Lab:
    """The lab; ``on_request`` is called with method and path before each request to one of its cloud services."""
    lab = Lab.open(root)
    files = lab.layout
    lab.__dict__["cloud"] = embedded_cloud(
        placement=files.placement,
        database=files.services,
        volumes=files.volumes,
        images=files.images,
        on_request=on_request,
    )
    return lab


def rest(lab: Lab) -> None:
    """Give back every connection of the lab; its engines stay, with the statements that they have compiled."""
    for database in (lab.api, lab.journal, *lab.cell_databases.values()):
        database.engine.dispose()
    lab.cloud.close()
    placement.disconnect(lab.layout.placement)


def freeze() -> None:
    """Let no later collection touch what stands now: it would copy pages that children share with their parent."""
    gc.collect()
    gc.freeze()
