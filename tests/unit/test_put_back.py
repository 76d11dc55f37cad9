"""What the rows of a server say after each step of its move: held against the graphs and the allowed states."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from support.rows.server_states import ServerState, check_transition

from droveway.flows import put_back, registry
from droveway.flows.graph import Graph
from droveway.flows.put_back import Ran
from droveway.flows.stands import START, WAITS, Leaves, Power, Side, Stands, Vm
from droveway.flows.step import Step
from droveway.flows.steps.hosts.command import HostStep
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


def begun(graph: Graph) -> Stands:
    if graph.kind in ("unshelve", "cross_cell_unshelve"):
        return SHELVED
    begins = graph.kind == "shelve" or graph.kind_record.carries is Carries.TO_DESTINATION
    return START if begins else dataclasses.replace(WAITS, attempt=1)


def state(found: Stands) -> ServerState:
    return ServerState(VM[found.vm_state], found.task_state, found.status)


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
        (Forgets, "step forgets is undone: let its leaves say for both ways what becomes of zone"),
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
        assert found == dataclasses.replace(START, status="error", attempt=1)
    else:
        assert found == begun(graph)


def test_a_move_that_went_through_waits() -> None:
    assert put_back.left(FORWARD) == dataclasses.replace(WAITS, attempt=1)


def test_a_shelve_leaves_what_an_unshelve_takes_up() -> None:
    assert put_back.left(runs(registry.latest("shelve"))) == SHELVED


def test_a_move_that_was_confirmed_stays_on_its_destination() -> None:
    found = put_back.left([*FORWARD, *runs(registry.latest("confirm"))])
    assert (found.side, found.attachments, found.status) == (Side.DESTINATION, Side.DESTINATION, "confirmed")
    assert (found.cur, found.old, found.new, found.traces) == ("new", None, None, False)


def test_a_move_that_was_reverted_is_as_before() -> None:
    found = put_back.left([*FORWARD, *runs(registry.latest("revert"))])
    assert found == dataclasses.replace(START, status="reverted", attempt=1, power_state=Power.AGAIN)


def test_the_undo_of_a_step_that_was_never_done_makes_no_migration() -> None:
    ran = [Ran("resize", step, "revert") for step in ("record_migration", "accept")]
    assert put_back.left([Ran("resize", "accept"), *ran]) == START


def test_the_migration_names_the_alternate_that_was_tried_last() -> None:
    first = FORWARD[: FORWARD.index(Ran("resize", "check_destination", attempt=1))]
    undone = [Ran("resize", step, "revert", 1) for step in ("record_destination", "claim")]
    assert put_back.left([*first, *undone]).attempt == 1
    assert put_back.left([*first, *undone, Ran("resize", "record_destination", attempt=2)]).attempt == 2
