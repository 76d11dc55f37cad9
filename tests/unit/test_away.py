"""What becomes of each step of a move between cells whose cell is away."""

from __future__ import annotations

import pytest

from droveway.flows import registry
from droveway.flows.away import Verdict, verdict


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
    """Rules 6 and 7: by what others may have met of the two copies by then."""
    assert verdict(registry.latest(kind), step, direction, target=target, home=home) is wanted  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("step", "wanted"),
    [
        ("mark_confirming", Verdict.UNDONE),
        ("check_source_records", Verdict.SKIPPED),
        ("remove_source_records", Verdict.OWED_LATE),
        ("settle_records", Verdict.WAITS),
    ],
)
def test_a_confirm_goes_on_without_its_gone_source_cell(step: str, wanted: Verdict) -> None:
    """Only what looks at the copy there is left out."""
    graph = registry.latest("cross_cell_confirm")
    assert verdict(graph, step, "execute", target=False, home=False, down=True) is wanted
    reverting = registry.latest("cross_cell_revert")
    found = verdict(reverting, "check_source_records", "execute", target=False, home=False, down=True)
    assert found is Verdict.UNDONE
