"""What hosts may be asked for while an installation is upgraded."""

from __future__ import annotations

from typing import Final

import pytest
from support import second_version
from support.second_version import ACTION, BEFORE, LATER

from droveway.engines.conductor import eligibility
from droveway.flows import registry
from droveway.persistence.journal.tables import Daemon
from droveway.wire import commands, queries
from droveway.wire.levels import LEVEL, SINCE
from droveway.wire.values import ACTION_VERSION

ALL = [f"{action}@{ACTION_VERSION}" for action in (*commands.ACTIONS, *queries.QUERIES)]
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
        (NEW, "list_guests", 2, "list_guests came with protocol level 3"),
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


FIRST: Final = {kind: registry.latest(kind).version for kind in registry.kinds()}
NEXT: Final = {kind: number + 1 for kind, number in FIRST.items()}


def chosen(kind: str, pinned: int | None) -> tuple[str, int]:
    graph = eligibility.chosen(kind, pinned)
    return graph.kind, graph.version


def test_without_a_pin_the_newest_graph_is_chosen() -> None:
    with second_version.planted("resize"):
        assert chosen("resize", None) == ("resize", NEXT["resize"])
        assert chosen("resize", LATER) == ("resize", NEXT["resize"])
        assert chosen("migrate", None) == ("migrate", FIRST["migrate"])


def test_a_pin_chooses_the_older_graph_where_that_serves() -> None:
    """A move by it asks no worker for what came later, and none is refused for not knowing that."""
    with second_version.planted("resize", "revert"):
        graph = eligibility.chosen("resize", BEFORE)
        assert (graph.kind, graph.version, chosen("revert", BEFORE)) == (
            "resize",
            FIRST["resize"],
            ("revert", FIRST["revert"]),
        )
        wanted = eligibility.needed(BEFORE, graph)
        assert f"{ACTION}@{ACTION_VERSION}" not in wanted
        assert eligibility.pinned_below(BEFORE, graph) == ""
        assert eligibility.lacking(Daemon(name="host1", version="1.0", knows=ALL), wanted) == ""


def test_a_pin_forbids_moves_where_no_older_graph_serves() -> None:
    with second_version.planted("resize", "revert"):
        second_version.forget_older("revert")
        graph = eligibility.chosen("resize", BEFORE)
        assert graph.version == FIRST["resize"]
        assert chosen("revert", BEFORE) == ("revert", NEXT["revert"]), "its steps say what the host lacks"
        assert eligibility.pinned_below(BEFORE, graph) == (
            f"{ACTION} came with protocol level {LATER}, and [upgrade_levels] worker allows none above level {BEFORE}: "
            "take the pin out once every worker is upgraded"
        )


def test_a_kind_that_cannot_follow_a_move_keeps_none_from_being_made() -> None:
    with second_version.planted("migrate"):
        second_version.forget_older("migrate")
        assert eligibility.pinned_below(BEFORE, eligibility.chosen("resize", BEFORE)) == ""
        assert eligibility.pinned_below(BEFORE, eligibility.chosen("migrate", BEFORE))


def test_a_worker_that_is_too_old_is_named_with_its_level_and_the_mends() -> None:
    old = Daemon(name="host1", version="1.0", knows=ALL)
    told = f"its worker (1.0) does not know {ACTION}@{ACTION_VERSION} (level {LATER}): upgrade it first"
    with second_version.planted("resize"):
        wanted = eligibility.needed(None, eligibility.chosen("resize", None))
        assert eligibility.lacking(old, wanted) == (
            f"{told}, or set [upgrade_levels] worker = {BEFORE} on every conductor's machine until every worker is "
            "upgraded"
        )
        second_version.forget_older("resize")
        assert eligibility.lacking(old, wanted) == told, "no older graph would serve"
        old.knows = [*ALL, f"{ACTION}@{ACTION_VERSION}"]
        assert eligibility.lacking(old, wanted) == ""


def test_a_flow_needs_what_its_own_graph_asks_whatever_is_newest() -> None:
    """One that began with the first version goes to hosts that know no later one, pinned or not."""
    with second_version.planted("resize"):
        first = registry.graph("resize", FIRST["resize"])
        assert f"{ACTION}@{ACTION_VERSION}" not in eligibility.needed(None, first)
        assert f"{ACTION}@{ACTION_VERSION}" in eligibility.needed(BEFORE, registry.graph("resize", NEXT["resize"]))


def test_what_an_older_worker_owes_chooses_no_older_graph() -> None:
    """The end of a copy's mark is owed by a worker that does not know it, and never by a confirm without the step."""
    assert SINCE["keep_copy"] == 4
    assert chosen("confirm", 3) == ("confirm", FIRST["confirm"])
