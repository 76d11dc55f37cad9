"""Checks by which way a move's disks may go into another cell, and says before the move what is known of that way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from droveway.errors import Refused
from droveway.flows.steps.hosts.transferring import UPLOAD
from droveway.persistence.journal import transfers

if TYPE_CHECKING:
    from droveway.engines.site.site import Parts
    from droveway.flows.graph import Graph


def asked(site: Parts, transfer: str | None) -> str:
    """Return the way that is asked for, by an option or else by the configuration."""
    return transfer or str(site.conf.cross_cell.transfer)


def check(site: Parts, graph: Graph, *, transfer: str | None, keep_image: bool) -> None:
    """Raise `droveway.errors.Refused` if the options ask for something that this move cannot have.

    An image that is kept, and a transfer by image, need three things: the move leads into another cell, there is an
    image service, and the pinned protocol level allows uploads.
    """
    crosses = graph.kind_record.crosses_cells
    wanted = asked(site, transfer) if crosses else transfer
    if wanted != transfers.IMAGE and not keep_image:
        return
    option = "--keep-image" if keep_image else "--transfer image"
    if not crosses:
        raise Refused(f"{option} is for a move into another cell, and this one stays within its own: leave it out")
    if site.cloud.images is None:
        raise Refused(
            f"no image service is configured, which {option} needs: fill in [glance], or move the server with "
            "--transfer direct"
        )
    if UPLOAD not in graph.asked:
        raise Refused(
            f"{option} needs a higher protocol level than [upgrade_levels] worker allows: take the pin out "
            "once every worker is upgraded"
        )


def way(site: Parts, graph: Graph, storage: str, source: str, destination: str, *, wanted: str) -> tuple[str, str]:
    """Return by which way the disks would go, and why.

    If no disk goes from cell to cell, the way is empty.  If only the hosts can tell, it is the way that is ``wanted``.
    Raises `droveway.errors.Refused` if the disks are to go directly and cannot.
    """
    if not graph.kind_record.crosses_cells or storage not in ("copy", "unknown"):
        return "", "no disk goes from cell to cell"
    if wanted == transfers.IMAGE:
        return wanted, "it was asked for"
    barred = site.unreachable(source, destination)
    if barred is None:
        return wanted, f"{destination} finds out whether it reaches {source} before the guest is stopped"
    if not barred:
        return transfers.DIRECT, f"{destination} reaches the transfer port of {source}"
    if wanted == transfers.DIRECT:
        raise Refused(f"the disks cannot go directly: {barred}; ask for --transfer image, or auto")
    return transfers.IMAGE, barred
