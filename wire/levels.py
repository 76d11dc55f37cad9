"""How much is spoken to workers: each release that adds an action or an inquiry speaks one level more."""

from __future__ import annotations

from typing import Final

from droveway.wire.commands import ACTIONS
from droveway.wire.queries import QUERIES

SINCE: Final = {
    **{name: schema.since for name, schema in ACTIONS.items()},
    **{name: schema.since for name, schema in QUERIES.items()},
}
"""The level that each action and each inquiry came with."""

LEVEL: Final = max(SINCE.values())
"""The level of this release.  A worker of it knows all that came with lower ones, too."""
