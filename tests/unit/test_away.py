"""What becomes of each step of a move between cells whose cell is away."""

from __future__ import annotations

import itertools

import pytest

from droveway.flows import registry
from droveway.flows.away import AT_ONCE, Verdict, verdict


@pytest.mark.parametrize(
    ("kind", "step", "direction", "target", "home", "wanted"),
    [
        ("cross_cell_resize", "accept", "execute", False, True, Verdict.WAITS),
        ("cross_cell_resize", "copy_records", "execute", True, False, Verdict.FAULT),
        ("cross_cell_resize", "reserve_volumes", "execute", True, False, Verdict.FAULT),
        ("cross_cell_resize", "reserve_volumes", "execute", False, True, Verdict.WAITS),
        ("cross_cell_resize", "mark_migrating", "execute", True, False, Verdict.UNDONE),
        ("cross_cell_resize", "show_target", "execute", True, False, Verdict.UNDONE),
        ("cross_cell_resize", "hand_over_source", "execute", False, True, Verdict.UNDONE),
        ("cross_cell_resize", "switch_mapping", "execute", True, False, Verdict.PARKS),
        ("cross_cell_resize", "hide_source", "execute", False, False, Verdict.PARKS),
        ("cross_cell_resize", "start_guest", "execute", True, True, Verdict.PARKS),
        ("cross_cell_resize", "finish_source_records", "execute", False, False, Verdict.OWED_LATE),
        ("cross_cell_resize", "finish_records", "execute", True, True, Verdict.WAITS),
        ("cross_cell_resize", "copy_records", "revert", True, False, Verdict.OWED),
        ("cross_cell_resize", "show_target", "revert", True, False, Verdict.OWED),
        ("cross_cell_resize", "show_target", "revert", True, True, Verdict.WAITS),
        ("cross_cell_resize", "record_destination", "revert", False, True, Verdict.WAITS),
        ("cross_cell_unshelve", "copy_records", "execute", True, False, Verdict.FAULT),
        ("cross_cell_unshelve", "show_target", "execute", True, False, Verdict.UNDONE),
        ("cross_cell_confirm", "check_source_records", "execute", False, False, Verdict.UNDONE),
        ("cross_cell_confirm", "remove_source_records", "execute", False, False, Verdict.OWED_LATE),
        ("cross_cell_confirm", "settle_records", "execute", True, True, Verdict.WAITS),
        ("cross_cell_revert", "show_source", "execute", False, False, Verdict.UNDONE),
        ("cross_cell_revert", "show_source", "revert", False, False, Verdict.OWED),
        ("cross_cell_revert", "hide_target", "execute", True, False, Verdict.PARKS),
        ("cross_cell_revert", "remove_target_records", "execute", True, False, Verdict.OWED_LATE),
    ],
)
def test_what_a_step_comes_to(kind: str, step: str, direction: str, target: bool, home: bool, wanted: Verdict) -> None:
    """Rules 6 and 7: by which of the two copies users may have seen by then."""
    assert verdict(registry.latest(kind), step, direction, target=target, home=home) is wanted  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "step", "direction", "target", "home", "wanted"),
    [
        # A forward move before its guest is touched takes the next alternate, and is undone from then on to its start.
        ("cross_cell_resize", "copy_records", "execute", True, False, Verdict.FAULT),
        ("cross_cell_resize", "choose_destinations", "execute", True, False, Verdict.UNDONE),
        ("cross_cell_resize", "show_target", "execute", True, False, Verdict.UNDONE),
        ("cross_cell_resize", "carry_late_writes", "execute", True, False, Verdict.UNDONE),
        ("cross_cell_resize", "show_target", "revert", True, False, Verdict.OWED),
        ("cross_cell_resize", "finish_records", "execute", True, False, Verdict.OWED),
        # Its source gone, it goes on only where the target's rows stand in: that is once its copy has arrived.
        ("cross_cell_resize", "accept", "execute", False, True, Verdict.RESTS),
        ("cross_cell_resize", "stop_guest", "execute", False, True, Verdict.RESTS),
        ("cross_cell_resize", "hand_over_source", "execute", False, False, Verdict.SKIPPED),
        ("cross_cell_resize", "hide_source", "execute", False, False, Verdict.OWED),
        ("cross_cell_resize", "finish_source_records", "execute", False, False, Verdict.OWED),
        ("cross_cell_resize", "hide_source", "revert", False, False, Verdict.RESTS),
        ("cross_cell_resize", "stop_guest", "revert", False, True, Verdict.RESTS),
        # A confirm keeps what runs, and one whose target is gone waits again.
        ("cross_cell_confirm", "mark_confirming", "execute", False, False, Verdict.UNDONE),
        ("cross_cell_confirm", "check_source_records", "execute", False, False, Verdict.SKIPPED),
        ("cross_cell_confirm", "remove_source_records", "execute", False, False, Verdict.OWED),
        ("cross_cell_confirm", "mark_confirming", "execute", True, True, Verdict.UNDONE),
        ("cross_cell_confirm", "mark_confirming", "revert", True, True, Verdict.SKIPPED),
        ("cross_cell_confirm", "settle_records", "execute", True, True, Verdict.RESTS),
        # A revert goes on from the source's rows; without these it is undone, and rests once they were to count.
        ("cross_cell_revert", "mark_reverting", "execute", True, False, Verdict.SKIPPED),
        ("cross_cell_revert", "hand_over_target", "execute", True, False, Verdict.SKIPPED),
        ("cross_cell_revert", "hide_target", "execute", True, False, Verdict.OWED),
        ("cross_cell_revert", "remove_target_records", "execute", True, False, Verdict.OWED),
        ("cross_cell_revert", "mark_reverting", "revert", True, False, Verdict.OWED),
        ("cross_cell_revert", "hide_target", "revert", True, False, Verdict.OWED),
        ("cross_cell_revert", "check_source_records", "execute", False, False, Verdict.UNDONE),
        ("cross_cell_revert", "show_source", "revert", False, False, Verdict.OWED),
        ("cross_cell_revert", "start_guest", "execute", False, True, Verdict.RESTS),
        ("cross_cell_unshelve", "show_target", "execute", True, False, Verdict.UNDONE),
        ("cross_cell_unshelve", "finish_records", "execute", True, True, Verdict.RESTS),
        ("cross_cell_unshelve", "remove_source_records", "execute", False, False, Verdict.OWED),
    ],
)
def test_what_a_step_comes_to_whose_cell_is_gone(
    kind: str, step: str, direction: str, target: bool, home: bool, wanted: Verdict
) -> None:
    """Rule 18: at once, by the rows that are left; ``home`` is what stands in for those of a cell that is gone."""
    found = verdict(registry.latest(kind), step, direction, target=target, home=home, down=True)  # type: ignore[arg-type]
    assert found is wanted


def test_no_step_waits_for_a_cell_that_is_gone() -> None:
    """Whichever it is, whichever way it goes and whichever cell it is: it ends, is owed, or rests with a sentence."""
    for kind in ("cross_cell_resize", "cross_cell_confirm", "cross_cell_revert", "cross_cell_unshelve", "delete"):
        graph = registry.latest(kind)
        for name, direction, target, home in itertools.product(
            graph.names(), ("execute", "revert"), *[(True, False)] * 2
        ):
            found = verdict(graph, name, direction, target=target, home=home, down=True)  # type: ignore[arg-type]
            assert found in AT_ONCE or (found is Verdict.UNDONE and direction == "execute"), (kind, name, direction)
            past = graph.names().index(name) > graph.names().index(graph.no_return.step_name())
            assert not (past and found in (Verdict.UNDONE, Verdict.FAULT)), (kind, name)
