"""What a server's rows show of a flow whose journal was put back: step by step, as the graphs order them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from support.rows.moving_rows import DESTINATION, SOURCE, Moving, guest

from droveway.errors import StepError
from droveway.flows import registry
from droveway.flows.graph import Graph
from droveway.flows.step import Step
from droveway.flows.steps import overtaken, reverting
from droveway.flows.steps.hosts import elsewhere
from droveway.flows.steps.hosts.command import HostStep
from droveway.flows.steps.records import crossing, crossing_back, revert
from droveway.flows.steps.records import forward as forward_records
from droveway.persistence.journal.kinds import Carries
from droveway.persistence.journal.step_runs import ADOPTED
from droveway.persistence.nova.cell import Migration
from droveway.wire.values import Direction

FORWARD = [
    graph
    for graph in registry.GRAPHS.values()
    if graph.kind_record.carries is Carries.TO_DESTINATION and graph.kind_record.has_migration
]
BACK = [graph for graph in registry.GRAPHS.values() if graph.kind_record.carries is Carries.BACK]


@pytest.fixture(name="moving")
def fixture_moving(tmp_path: Path) -> Iterator[Moving]:
    made = Moving(tmp_path)
    yield made
    made.close()


def adopted(moving: Moving, kind: str, version: int | None = None) -> Moving:
    moving.kind, moving.version = kind, version
    moving.note(ADOPTED)
    return moving


def names(graph: Graph) -> list[str]:
    return [step.step_name() for step in graph.walk()]


def until(graph: Graph, last: type[Step]) -> list[str]:
    """The steps up to this one, which is one of them."""
    return names(graph)[: list(graph.walk()).index(last) + 1]


def since(graph: Graph, first: type[Step]) -> list[str]:
    """This step and all after it."""
    return names(graph)[list(graph.walk()).index(first) :]


# By hand: the step from which on the rows of the cell that the server lives in name the other host.
SWITCHES = {
    "resize": forward_records.SwitchRecords,
    "migrate": forward_records.SwitchRecords,
    "revert": revert.SwitchRecords,
    "cross_cell_resize": crossing.SwitchMapping,
    "cross_cell_migrate": crossing.SwitchMapping,
    "cross_cell_revert": crossing_back.SwitchMapping,
    "cross_cell_revert_elsewhere": crossing_back.SwitchMapping,
}
# The migration is finished by the last step, and these come between the start and that.
BETWEEN = ("save_request_spec", "finish_source_records")


def switch(graph: Graph) -> type[Step]:
    why = f"name in SWITCHES of tests/unit/test_overtaken_rows.py the step of {graph.kind} that lets the rows name it"
    assert graph.kind in SWITCHES, why
    return SWITCHES[graph.kind]


def finding(graph: Graph) -> set[str]:
    """What comes before the first step on a destination, the choice too.

    A revert is to know what it found on both hosts.
    """
    if graph.kind_record.carries is Carries.BACK:
        checks = elsewhere.CheckSource if graph.kind_record.elsewhere else reverting.CheckSource
        return set(graph.names()[: graph.names().index(checks.step_name()) + 1])
    return {name for name in graph.names() if name not in since(graph, graph.tried[0])}


@pytest.mark.parametrize("graph", FORWARD, ids=lambda graph: f"{graph.kind}@{graph.version}")
def test_what_the_rows_show_of_a_forward_flow_follows_from_its_order(graph: Graph) -> None:
    """`switch_records` lets the rows name the other host, `mark_migrating` ends the preparing, and `record_migration`
    makes the migration, whose end is the first that is known of an undo.  Of what comes past the start the last step
    finishes the migration.
    """
    shown = graph.shown
    assert shown.switch == switch(graph).step_name()
    assert shown.switched == set(since(graph, switch(graph)))
    assert shown.started == set(since(graph, graph.no_return)[1:-1])
    assert shown.first == set(until(graph, forward_records.RecordMigration))
    assert shown.preparing == set(until(graph, forward_records.MarkMigrating))
    assert graph.shown.finding == finding(graph)


@pytest.mark.parametrize("graph", BACK, ids=lambda graph: f"{graph.kind}@{graph.version}")
def test_what_the_rows_show_of_a_revert_follows_from_its_order(graph: Graph) -> None:
    shown = graph.shown
    assert shown.switch == switch(graph).step_name()
    assert shown.switched == set(since(graph, switch(graph)))
    assert shown.first == {names(graph)[0]}
    assert graph.shown.finding == finding(graph)


@pytest.mark.parametrize("kind", ["confirm", "delete"])
def test_a_flow_without_a_choice_finds_nothing_for_its_undos(kind: str) -> None:
    assert all(not graph.shown.finding for graph in registry.versions(kind))


class Added(HostStep):
    """A step that a graph gets."""

    no_undo = "it only looks"


@pytest.mark.parametrize("graph", [registry.latest("migrate")], ids=lambda graph: graph.kind)
def test_a_step_that_a_graph_gets_counts_by_its_place(graph: Graph) -> None:
    def shown(**changed: tuple[type[Step], ...]) -> list[bool]:
        made = dataclasses.replace(graph, **changed)
        known = made.shown
        sets = (known.first, known.finding, known.preparing, known.switched, known.started)
        return ["added" in each for each in sets]

    assert shown(steps=(Added, *graph.steps)) == [True, True, True, False, False]
    assert shown(tried=(Added, *graph.tried)) == [False, False, True, False, False]
    assert shown(tried=(*graph.tried[:-2], Added, *graph.tried[-2:])) == [False] * 5
    assert shown(tried=(*graph.tried[:-1], Added, graph.tried[-1])) == [False, False, False, True, False]
    assert shown(after=(*graph.after[:-1], Added, graph.after[-1])) == [False, False, False, True, True]
    assert shown(after=(*graph.after, Added)) == [False, False, False, True, False]


@pytest.mark.parametrize("graph", FORWARD, ids=lambda graph: f"{graph.kind}@{graph.version}")
@pytest.mark.parametrize("finished", [False, True])
def test_rows_that_name_the_destination_show_all_before_the_switch_as_done(
    moving: Moving, graph: Graph, *, finished: bool
) -> None:
    adopted(moving, graph.kind, graph.version)
    moving.place(DESTINATION, *((None, "finished", "resized") if finished else ("resize_finish", "post-migrating")))
    shown = [step for step in names(graph) if overtaken.went_on(moving, step)]
    later = since(graph, switch(graph))
    assert shown == [step for step in names(graph) if step not in later or (finished and step not in BETWEEN)]
    assert not any(overtaken.went_back(moving, step) for step in names(graph))


@pytest.mark.parametrize("graph", FORWARD, ids=lambda graph: f"{graph.kind}@{graph.version}")
@pytest.mark.parametrize(
    ("host", "task", "status", "vm_state"),
    [
        (DESTINATION, None, "confirming", "resized"),
        (DESTINATION, None, "confirmed", "active"),
        (DESTINATION, "resize_reverting", "reverting", "resized"),
        (SOURCE, "resize_reverting", "reverting", "resized"),
        (SOURCE, None, "reverted", "active"),
        # It was moved once more since.
        ("third", None, "confirmed", "active"),
    ],
)
def test_a_confirm_or_revert_shows_all_of_the_forward_flow_as_done(
    moving: Moving, graph: Graph, host: str, task: str | None, status: str, vm_state: str
) -> None:
    moving.kind, moving.version = graph.kind, graph.version
    moving.place(host, task, status, vm_state)
    assert not any(overtaken.went_on(moving, step) for step in names(graph))
    overtaken._ADOPTED.clear()
    adopted(moving, graph.kind, graph.version)
    assert all(overtaken.went_on(moving, step) for step in names(graph))


@pytest.mark.parametrize("graph", BACK, ids=lambda graph: f"{graph.kind}@{graph.version}")
def test_rows_that_name_the_source_show_a_revert_up_to_the_switch_as_done(moving: Moving, graph: Graph) -> None:
    adopted(moving, graph.kind, graph.version)
    moving.place(SOURCE, "resize_reverting", "reverting", "resized")
    shown = [step for step in names(graph) if overtaken.went_on(moving, step)]
    assert shown == until(graph, switch(graph))
    moving.place(SOURCE, None, "reverted")
    assert not any(overtaken.went_on(moving, step) for step in names(graph))


@pytest.mark.parametrize("graph", FORWARD, ids=lambda graph: f"{graph.kind}@{graph.version}")
@pytest.mark.parametrize(
    ("task", "status", "last"),
    [("resize_migrated", "migrating", None), ("resize_migrated", "pre-migrating", forward_records.MarkMigrating)],
)
def test_the_migration_shows_how_far_the_flow_was_taken_back(
    moving: Moving, graph: Graph, task: str, status: str, last: type[Step] | None
) -> None:
    """Who is asked to undo a step that was undone finds the source's guest in use, and takes its disks aside."""
    adopted(moving, graph.kind, graph.version)
    moving.place(SOURCE, task, status)
    undone = [step for step in names(graph) if overtaken.went_back(moving, step)]
    assert undone == ([] if last is None else names(graph)[len(until(graph, last)) :])
    assert not any(overtaken.went_on(moving, step) for step in names(graph))


@pytest.mark.parametrize("graph", FORWARD, ids=lambda graph: f"{graph.kind}@{graph.version}")
def test_a_migration_that_ended_leaves_only_the_first_steps_to_be_undone(moving: Moving, graph: Graph) -> None:
    adopted(moving, graph.kind, graph.version)
    moving.place(SOURCE, "resize_migrated", "error")
    left = [step for step in names(graph) if not overtaken.went_back(moving, step)]
    assert left == until(graph, forward_records.RecordMigration)


@pytest.mark.parametrize("graph", BACK, ids=lambda graph: f"{graph.kind}@{graph.version}")
def test_a_revert_whose_server_waits_again_was_undone(moving: Moving, graph: Graph) -> None:
    adopted(moving, graph.kind, graph.version)
    moving.place(DESTINATION, None, "finished", "resized")
    assert all(overtaken.went_back(moving, step) for step in names(graph))
    moving.place(DESTINATION, None, "confirmed")
    assert all(overtaken.went_back(moving, step) for step in names(graph))
    moving.place(DESTINATION, "resize_reverting", "reverting", "resized")
    assert not any(overtaken.went_back(moving, step) for step in names(graph))


@pytest.mark.parametrize(("kind", "step"), [("migrate", "copy_disks"), ("revert", "restore_disks")])
def test_a_journal_that_was_not_adopted_is_believed(moving: Moving, kind: str, step: str) -> None:
    moving.kind = kind
    for host, task, status in (
        (DESTINATION, "resize_finish", "post-migrating"),
        (SOURCE, "resize_reverting", "reverting"),
        (SOURCE, "resize_migrated", "error"),
        (DESTINATION, None, "finished"),
    ):
        moving.place(host, task, status)
        assert not overtaken.went_on(moving, step)
        assert not overtaken.went_back(moving, step)
        overtaken.require_way(moving.context(step))
        overtaken.require_way(moving.context(step, "revert"))


def refused(moving: Moving, step: str, direction: Direction = "execute") -> StepError:
    with pytest.raises(StepError) as caught:
        overtaken.require_way(moving.context(step, direction))
    assert caught.value.error_code == "overtaken"
    said = f"so {step} is not {'undone' if direction == 'revert' else 'done'}"
    assert said in str(caught.value)
    return caught.value


@pytest.mark.parametrize("step", ["claim", "stop_guest", "copy_disks", "define_guest"])
def test_a_move_that_was_undone_is_not_begun_anew(moving: Moving, step: str) -> None:
    adopted(moving, "migrate")
    moving.place(SOURCE, None, "error")
    assert "it was undone" in str(refused(moving, step))


def test_the_first_steps_go_on_while_the_mark_of_the_move_stands(moving: Moving) -> None:
    adopted(moving, "migrate")
    moving.place(SOURCE, "resize_migrated", "error")
    overtaken.require_way(moving.context("record_migration"))
    refused(moving, "claim")
    moving.place(SOURCE, None, "error")
    refused(moving, "record_migration")


def test_rows_name_no_destination_while_the_sources_guest_runs(moving: Moving) -> None:
    adopted(moving, "migrate")
    moving.says[SOURCE] = guest(running=True)
    overtaken.require_way(moving.context("define_guest"))
    found = refused(moving, "switch_records")
    assert (found.host, "its guest runs on host1" in str(found)) == (SOURCE, True)
    moving.says[SOURCE] = guest()
    overtaken.require_way(moving.context("switch_records"))


def test_nothing_is_undone_of_a_server_that_lives_elsewhere(moving: Moving) -> None:
    adopted(moving, "migrate")
    moving.says[DESTINATION] = guest()
    moving.place(DESTINATION, "resize_finish", "post-migrating")
    found = refused(moving, "copy_disks", "revert")
    assert (found.host, "its rows name host2" in str(found)) == (DESTINATION, True)
    overtaken.require_way(moving.context("switch_records", "revert"))
    moving.place("host3", "resize_finish", "post-migrating")
    refused(moving, "switch_records", "revert")


@pytest.mark.parametrize("facts", [{"running": True}, {"starts": 1}])
def test_nothing_is_undone_beside_a_guest_that_the_destination_started(moving: Moving, facts: dict[str, int]) -> None:
    adopted(moving, "migrate")
    moving.says[DESTINATION] = guest(**facts)
    found = refused(moving, "set_aside", "revert")
    assert (found.host, "host2 has started its guest" in str(found)) == (DESTINATION, True)
    moving.says[DESTINATION] = guest()
    overtaken.require_way(moving.context("set_aside", "revert"))


def test_a_revert_that_was_undone_begins_with_its_mark_or_not_at_all(moving: Moving) -> None:
    adopted(moving, "revert")
    moving.place(DESTINATION, None, "finished", "resized")
    refused(moving, "restore_disks")
    overtaken.require_way(moving.context("mark_reverting"))
    overtaken.require_way(moving.context("restore_disks", "revert"))
    moving.place(DESTINATION, "resize_reverting", "reverting", "resized")
    overtaken.require_way(moving.context("restore_disks"))


def test_nothing_is_asked_of_a_server_that_is_deleted(moving: Moving) -> None:
    adopted(moving, "migrate")
    moving.place(SOURCE, None, "error")
    moving.change(deleted=1)
    overtaken.require_way(moving.context("copy_disks"))


def test_rows_that_are_switched_are_not_switched_while_the_source_is_away(moving: Moving) -> None:
    """Who asks the source then waits for a host that the server left."""
    adopted(moving, "migrate")
    moving.place(DESTINATION, "resize_finish", "post-migrating")
    assert SOURCE not in moving.says
    overtaken.require_way(moving.context("switch_records"))


@pytest.mark.parametrize("graph", FORWARD, ids=lambda graph: f"{graph.kind}@{graph.version}")
def test_a_forward_flow_that_was_put_back_parks_until_it_is_on_its_destination(moving: Moving, graph: Graph) -> None:
    adopted(moving, graph.kind, graph.version)
    parks = {step for step in graph.names() if overtaken.may_not_turn_back(moving, step)}
    assert parks == finding(graph)
    moving.chosen = None
    assert not any(overtaken.may_not_turn_back(moving, step) for step in graph.names()), "nothing was claimed"


@pytest.mark.parametrize("graph", BACK, ids=lambda graph: f"{graph.kind}@{graph.version}")
def test_a_revert_that_was_put_back_parks_where_its_rows_show_that_it_began(moving: Moving, graph: Graph) -> None:
    adopted(moving, graph.kind, graph.version)
    moving.place(DESTINATION, "resize_reverting", "reverting", "resized")
    parks = {step for step in graph.names() if overtaken.may_not_turn_back(moving, step)}
    assert parks == finding(graph)
    moving.place(DESTINATION, None, "finished", "resized")
    assert not any(overtaken.may_not_turn_back(moving, step) for step in graph.names())


@pytest.mark.parametrize("graph", [*FORWARD, *BACK], ids=lambda graph: f"{graph.kind}@{graph.version}")
def test_what_may_be_done_lies_between_the_failed_step_and_the_start(moving: Moving, graph: Graph) -> None:
    adopted(moving, graph.kind, graph.version)
    moving.place(DESTINATION, "resize_reverting", "reverting", "resized")
    order = graph.names()
    start = order.index(graph.no_return.step_name())
    for number, step in enumerate(order[:start]):
        known = [] if step in finding(graph) else order[number + 1 : start]
        assert overtaken.may_be_done(moving, step, graph) == known
    moving.row.attempt = 2
    assert overtaken.may_be_done(moving, order[start - 2], graph) == [], "this alternate the journal knows"


@pytest.mark.parametrize("later", ["in another flow", "in none"])
def test_what_another_flow_did_since_the_adoption_the_journal_knows(moving: Moving, later: str) -> None:
    """A flow that was filed for what had begun before the journal was put back comes right behind the adoption."""
    moving.flow_uuid = "c0ffee00-77aa-4a63-8d4e-2a0f2a0c9b05"
    adopted(moving, "revert")
    moving.flow_uuid = "c0ffee00-77aa-4a63-8d4e-2a0f2a0c9b06"
    if later == "in another flow":
        moving.note("finish_records")
    moving.flow_uuid = "c0ffee00-77aa-4a63-8d4e-2a0f2a0c9b07"
    moving.note("mark_reverting")
    assert overtaken.is_behind(moving) == (later == "in none")


def test_a_flow_whose_record_is_lost_parks(moving: Moving) -> None:
    adopted(moving, "migrate")
    parks: list[StepError] = []
    moving.park = lambda _step, _direction, error: parks.append(error)
    overtaken.require_record(moving.context("record_before"), lost="what the server was")
    assert [error.error_code for error in parks] == ["record-lost"]
    assert "before it knew what the server was" in str(parks[0])


def test_a_flow_whose_migration_does_not_stand_yet_records_the_server_anew(moving: Moving) -> None:
    adopted(moving, "migrate")
    with moving.cell.write() as session:
        session.execute(sa.delete(Migration))
    overtaken.require_record(moving.context("record_before"), lost="what the server was")
