"""What hosts may be asked for while an installation is upgraded."""

from __future__ import annotations

import pytest

from droveway.engines.conductor import eligibility
from droveway.persistence.journal.tables import Daemon
from droveway.wire import commands, queries
from droveway.wire.levels import LEVEL
from droveway.wire.values import ACTION_VERSION

ALL = [f"{action}@{ACTION_VERSION}" for action in (*commands.ACTIONS, *queries.INQUIRIES)]
NEW = Daemon(name="host1", version="2.0", knows=ALL)
OLD = Daemon(name="host1", version="1.0", knows=[f"copy_disks@{ACTION_VERSION}"])


@pytest.mark.parametrize(
    ("worker", "action", "pinned", "told"),
    [
        (NEW, "purge_kept", None, ""),
        (NEW, "purge_kept", LEVEL, ""),
        (None, "purge_kept", None, ""),
        (NEW, "copy_disks", 1, ""),
        (NEW, "purge_kept", 1, "take the pin out"),
        (None, "purge_kept", 1, "take the pin out"),
        (OLD, "purge_kept", None, "its worker (1.0) does not know purge_kept@1: upgrade it first"),
        (OLD, "copy_disks", 1, ""),
        (NEW, "check_guest", None, ""),
        (OLD, "check_guest", None, "its worker (1.0) does not know check_guest@1: upgrade it first"),
        (NEW, "list_guests", None, ""),
        (NEW, "list_guests", 2, "list_guests came with level 3"),
        (OLD, "list_directories", None, "its worker (1.0) does not know list_directories@1: upgrade it first"),
    ],
)
def test_an_action_is_spoken_where_the_worker_and_the_pin_allow_it(
    worker: Daemon | None, action: str, pinned: int | None, told: str
) -> None:
    """R4-16, R4-17."""
    why = eligibility.unsupported(worker, action, pinned)
    assert told in why
    assert bool(told) == bool(why)
