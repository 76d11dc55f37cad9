"""Holds the protocol levels: each release that adds an action or a query speaks one level more than the one before."""

from __future__ import annotations

from typing import Final

from droveway.wire.commands import ACTIONS
from droveway.wire.queries import QUERIES

SINCE: Final = {
    **{name: schema.since for name, schema in ACTIONS.items()},
    **{name: schema.since for name, schema in QUERIES.items()},
}
"""The level at which each action and each query was added."""

LEVEL: Final = max(SINCE.values())
"""The level of this release.  Its worker also knows everything that lower levels added."""
