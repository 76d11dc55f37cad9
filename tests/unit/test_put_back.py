"""What the rows of a server say after each step of its move: held against the graphs and the allowed states."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from support.rows.server_states import ServerState, check_transition

from droveway.flows import put_back, registry
from droveway.flows.graph import Graph
from droveway.flows.put_back import Copies, Ran
from droveway.flows.stands import GONE, START, Leaves, Power, Side, Stands, Vm
from droveway.flows.step import Step
from droveway.flows.steps.hosts.command import HostStep
from droveway.persistence.journal import kinds
from droveway.persistence.journal.kinds import Carries

GRAPHS = list(registry.GRAPHS.values())
MOVES = [graph for graph in GRAPHS if graph.kind != "delete"]
SHELVED = Stands(*(None, Vm.OFFLOADED, Power.OFF), side=Side.NOWHERE, zone=Side.NOWHERE, attachments=Side.NOWHERE)
"""What a shelve leaves, by hand."""
FORWARD = [Ran("resize", step.step_name(), attempt=1) for step in registry.latest("resize").walk()]
VM = {Vm.BEFORE: "active", Vm.RESIZED: "resized", Vm.FOUND: "active", Vm.DELETED: "deleted"}
VM |= {Vm.SHELVED: "shelved", Vm.OFFLOADED: "shelved_offloaded", Vm.ACTIVE: "active"}


def name(graph: Graph) -> str:
    return f"{graph.kind}@{graph.version}"


def runs(graph: Graph) -> list[Ran]:
    return [Ran(graph.kind, step.step_name(), attempt=1) for step in graph.walk()]


def begun(graph: Graph) -> Copies:
    kind = graph.kind_record
    if kind.ends_wait:
        return put_back.waiting(1, between=kind.crosses_cells)
    return put_back.begun(kind)


def state(found: Copies) -> ServerState:
    return ServerState(VM[found.home.vm_state], found.home.task_state, found.home.status)


class Silent(Step):
    """A step that says nothing of the rows."""


class Forgets(HostStep):
    """A step whose undo says nothing of what it left."""

    leaves = Leaves({"zone": Side.DESTINATION})


class TakesBack(Forgets):
    """A step that takes something back without an undo."""

    no_undo = "it only looks"
    leaves = Leaves({}, {"zone": Side.SOURCE})


class Elsewhere(HostStep):
    """A step that leaves what no row has."""

    no_undo = "it only looks"
    leaves = Leaves({"place": Side.SOURCE})


@pytest.mark.parametrize(
    ("step", "told"),
    [
        (Silent, "say in leaves of step silent what it changes in the server's rows, NOTHING for none"),
        (Forgets, "step forgets has an undo: let its leaves say for both ways what becomes of zone"),
        (TakesBack, "step takes_back has no undo: let its leaves say only what it does"),
        (Elsewhere, "step elsewhere leaves place: Stands has no such field"),
    ],
)
def test_no_graph_has_a_step_that_does_not_say_rightly_what_it_leaves(step: type[Step], told: str) -> None:
    graph = registry.latest("confirm")
    with pytest.raises(ValueError, match=told):
        dataclasses.replace(graph, steps=(*graph.steps, step))


@pytest.mark.parametrize("kind", registry.kinds())
def test_a_step_leaves_the_same_in_every_version_of_its_kind(kind: str) -> None:
    """The history names the kind of a flow, and no version."""
    for graph in registry.versions(kind):
        for step in graph.walk():
            newest = registry.step(kind, step.step_name())
            why = f"give {step.step_name()} of {kind}@{graph.version} another name: the newest leaves other rows"
            assert newest is not None
            assert newest.leaves == step.leaves, why


@pytest.mark.parametrize("graph", MOVES, ids=name)
def test_each_step_leads_to_a_state_that_is_allowed(graph: Graph) -> None:
    found = begun(graph)
    for ran in runs(graph):
        became = put_back.after(found, ran)
        if state(became) != state(found):
            check_transition(state(found), state(became))
        found = became


@pytest.mark.parametrize("graph", MOVES, ids=name)
def test_all_undos_lead_back(graph: Graph) -> None:
    there = list(itertools.takewhile(lambda ran: ran.step != graph.no_return.step_name(), runs(graph)))
    found = begun(graph)
    for ran in there:
        found = put_back.after(found, ran)
    for ran in reversed(there):
        became = put_back.after(found, ran._replace(direction="revert"))
        if state(became) != state(found):
            check_transition(state(found), state(became))
        found = became
    if graph.kind_record.carries is Carries.TO_DESTINATION and graph.kind_record.has_migration:
        # The migration stays as evidence.
        assert found == Copies(dataclasses.replace(START, status="error", attempt=1))
    else:
        # A hidden copy keeps the attachments that it got; whoever shows it gives it the right ones.
        source = dataclasses.replace(found.source, attachments=begun(graph).source.attachments)
        assert dataclasses.replace(found, source=source) == begun(graph)


@pytest.mark.parametrize("graph", MOVES, ids=name)
def test_what_a_step_leaves_is_what_the_mapped_copy_says_then(graph: Graph) -> None:
    """Of a graph between cells too, whose switch says what the rows of the other cell have said before."""
    found = begun(graph)
    home = found.home
    for ran in runs(graph):
        step = registry.step(graph.kind, ran.step)
        assert step is not None
        found, home = put_back.after(found, ran), put_back.changed(home, step.leaves, ran)
        if ran.step == "switch_mapping":
            # The copy there is off from the beginning, and the host in a source's place is a return's.
            there = dataclasses.replace(found.home, power_state=home.power_state)
            side = {Side.RETURN: Side.SOURCE}
            there = dataclasses.replace(
                there, side=side.get(there.side, there.side), zone=side.get(there.zone, there.zone)
            )
            assert there == home
        if graph.kind_record.crosses_cells and ran.step.endswith("_mapping"):
            home = found.home
        assert found.home == home


def move(kind: str, *ends: str) -> Copies:
    """What a move of the kind left that went through, and those flows behind it."""
    ran = [ran for each in (kind, *ends) for ran in runs(registry.latest(each))]
    return put_back.left(registry.latest(kind).kind_record, ran)


def test_a_move_that_went_through_waits() -> None:
    assert move("resize") == put_back.waiting(1, between=False)
    assert move("cross_cell_resize") == put_back.waiting(1, between=True)


def test_a_shelve_leaves_what_an_unshelve_takes_up() -> None:
    assert move("shelve") == Copies(SHELVED)
    assert put_back.begun(registry.latest("unshelve").kind_record) == Copies(SHELVED)


@pytest.mark.parametrize("kind", ["unshelve", "cross_cell_unshelve"])
def test_a_server_that_was_unshelved_is_active_on_its_destination(kind: str) -> None:
    found = move(kind)
    there = Side.DESTINATION
    assert found.home == Stands(vm_state=Vm.ACTIVE, power_state=Power.AGAIN, side=there, zone=there, attachments=there)
    assert found == (Copies(GONE, found.home, there) if kind.startswith("cross") else Copies(found.home))


@pytest.mark.parametrize("between", ["", "cross_cell_"])
def test_a_move_that_was_confirmed_stays_on_its_destination(between: str) -> None:
    found = move(f"{between}resize", f"{between}confirm")
    home = found.home
    assert (home.side, home.attachments, home.status) == (Side.DESTINATION, Side.DESTINATION, "confirmed")
    assert (home.cur, home.old, home.new, home.traces, home.hidden) == ("new", None, None, False, False)
    assert found == (Copies(GONE, home, Side.DESTINATION) if between else Copies(home))


def test_a_move_that_was_reverted_is_as_before() -> None:
    wanted = dataclasses.replace(START, status="reverted", attempt=1, power_state=Power.AGAIN)
    assert move("resize", "revert") == Copies(wanted)
    back = dataclasses.replace(wanted, side=Side.RETURN, zone=Side.RETURN)
    assert move("cross_cell_resize", "cross_cell_revert") == Copies(back)
    assert move("cross_cell_resize", "cross_cell_revert_elsewhere") == Copies(back)


def test_the_undo_of_a_step_that_was_never_done_makes_no_migration() -> None:
    ran = [Ran("resize", step, "revert") for step in ("record_migration", "accept")]
    assert put_back.left(kinds.RESIZE, [Ran("resize", "accept"), *ran]) == Copies(START)


def test_the_migration_names_the_alternate_that_was_tried_last() -> None:
    first = FORWARD[: FORWARD.index(Ran("resize", "check_destination", attempt=1))]
    undone = [Ran("resize", step, "revert", 1) for step in ("record_destination", "claim")]
    assert put_back.left(kinds.RESIZE, [*first, *undone]).home.attempt == 1
    again = [*first, *undone, Ran("resize", "record_destination", attempt=2)]
    assert put_back.left(kinds.RESIZE, again).home.attempt == 2


def test_a_copy_is_made_of_what_the_other_one_says_by_then() -> None:
    """Of an alternate in a third cell too, whose migration names the one that was tried before."""
    steps = runs(registry.latest("cross_cell_resize"))
    upto = [ran.step for ran in steps].index("record_destination_copy")
    first = steps[: upto + 1]
    found = put_back.left(kinds.CROSS_CELL_RESIZE, first)
    hidden = dataclasses.replace(found.source, hidden=True, power_state=Power.OFF)
    assert found == Copies(found.source, hidden)
    undone = [
        ran._replace(direction="revert")
        for ran in reversed(first)
        if ran.step in ("record_destination", "copy_records")
    ]
    again = put_back.left(
        kinds.CROSS_CELL_RESIZE, [*first, *undone, Ran("cross_cell_resize", "copy_records", attempt=2)]
    )
    assert (again.target.attempt, again.target.status, again.target.traces) == (1, "pre-migrating", False)
