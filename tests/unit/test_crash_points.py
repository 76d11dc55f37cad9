"""The crash matrix takes its points from the graphs: a step is among them by being in one."""

from __future__ import annotations

import itertools

import pytest
from proofs.crash import points as crash_points
from proofs.crash.script import Script

from droveway.engines.conductor.conductor import END_OF_FLOW
from droveway.errors import DestinationFault, StepError
from droveway.flows import registry
from droveway.flows.graph import Graph
from droveway.flows.stands import NOTHING
from droveway.flows.step import Step
from droveway.persistence.journal.states import State

EVERY = pytest.mark.parametrize("graph", list(registry.GRAPHS.values()), ids=lambda graph: graph.kind)


class Leaking(Step):
    """A step of this test."""

    leaves = NOTHING

    does = "leave something behind"
    undoes = "nothing"


@EVERY
def test_every_atom_is_killed_around_it_in_both_directions(graph: Graph) -> None:
    names = graph.names()
    last = names.index(graph.no_return.step_name())
    undone = names[: last + 1] if last else []
    for phase in ("before", "after", "stored"):
        for path, wanted in (("execute", names), ("revert", undone)):
            found = [
                each.first.step
                for each in crash_points.singles(graph, {})
                if (each.path, each.first.effect, each.first.phase) == (path, "kill", phase)
                and each.first.step != END_OF_FLOW
            ]
            assert found == wanted


@EVERY
def test_every_atom_fails_and_is_met_by_requests(graph: Graph) -> None:
    names = graph.names()
    found = {
        effect: [each.first.step for each in crash_points.singles(graph, {}) if each.first.effect == effect]
        for effect in ("fail", "refuse", "delete", "cancel", "pause")
    }
    assert set(names) == set(found["fail"]) == set(found["pause"])
    assert set(found["refuse"]) == {step.step_name() for step in graph.tried}
    assert set(found["delete"]) == (set() if graph.kind_record.deletes else set(names))
    assert set(found["cancel"]) == (set(names) if graph.kind_record.cancellable else set())


@EVERY
def test_every_step_runs_twice_and_every_undo(graph: Graph) -> None:
    twice = [each for each in crash_points.singles(graph, {}) if each.first.effect == "twice"]
    assert [each.first.step for each in twice if each.path == "execute"] == [each.step_name() for each in graph.walk()]
    names = graph.names()
    last = names.index(graph.no_return.step_name())
    undoes = {each.step_name() for each in graph.walk() if not each.no_undo} & set(names[: last + 1] if last else [])
    assert {each.first.step for each in twice if each.path == "revert"} == undoes


def test_a_gap_within_a_step_is_a_point_of_its_own() -> None:
    graph = registry.latest("resize")
    found = {str(each) for each in crash_points.singles(graph, {("execute", "copy_disks"): ["posted", "effect.1"]})}
    assert {
        "resize:execute:copy_disks:kill:effect.1",
        "resize:execute:copy_disks:fail:effect.1",
        "resize:execute:copy_disks:kill:posted",
    } <= found
    assert "resize:execute:set_aside:kill:effect.1" not in found


def test_a_step_is_among_the_points_by_being_in_a_graph() -> None:
    graph = registry.latest("confirm")
    longer = Graph(
        kind_record=graph.kind_record,
        version=2,
        steps=(graph.steps[0], Leaking, *graph.steps[1:]),
        no_return=graph.no_return,
    )
    every = [*crash_points.singles(longer, {}), *crash_points.pairs(longer)]
    met = {(spot.direction, spot.effect) for each in every for spot in each.spots if spot.step == "leaking"}
    assert met == {
        ("execute", "kill"),
        ("revert", "kill"),
        ("execute", "fail"),
        ("revert", "fail"),
        ("execute", "twice"),
        ("revert", "twice"),
        ("execute", "pause"),
        ("revert", "pause"),
        ("execute", "delete"),
        ("revert", "delete"),
    }


@EVERY
def test_a_point_is_named_by_its_text(graph: Graph) -> None:
    every = [*crash_points.singles(graph, {}), *crash_points.pairs(graph)]
    assert [crash_points.parse(str(each)) for each in every] == every
    assert len(set(map(str, every))) == len(every)


def test_one_graph_has_at_least_500_pairs() -> None:
    """Each failure with a fault in each undo that follows it."""
    graph = registry.latest("resize")
    found = {
        (first.step, second.step, second.effect)
        for first, second in (each.spots for each in crash_points.pairs(graph))
        if first.effect == "fail"
    }
    names = graph.names()
    before = names[: names.index("start_guest")]
    wanted = {(later, earlier) for earlier, later in itertools.combinations_with_replacement(before, 2)}
    assert {(first, second) for first, second, _ in found} == wanted
    assert len(found) == 2 * len(wanted) >= 450
    assert len(list(crash_points.pairs(graph))) >= 500


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("resize:execute:claim:kill:before", State.VERIFYING),
        ("resize:execute:claim:fail:before", State.FAILED),
        ("resize:execute:claim:refuse:before", State.VERIFYING),
        ("resize:execute:start_guest:fail:before", State.VERIFYING),
        ("resize:revert:claim:kill:before", State.FAILED),
        ("resize:retry:claim:fail:before", State.VERIFYING),
        ("resize:execute:claim:delete:before", State.CANCELLED),
        ("resize:execute:start_guest:delete:before", State.DONE),
        ("confirm:revert:mark_confirming:kill:after", State.VERIFYING),
        ("revert:execute:mark_reverting:delete:before", State.CANCELLED),
        ("resize:execute:claim:fail:after+revert:accept:kill:after", State.FAILED),
    ],
)
def test_where_a_point_has_to_end(text: str, end: State) -> None:
    assert crash_points.expected_end(crash_points.parse(text), accepted=True) == {end}


def test_a_script_counts_what_a_step_does_and_turns_the_flow_back() -> None:
    script = Script.of(crash_points.parse("resize:revert:set_aside:fail:effect.source.2"), "start_guest")
    script.conductor("", "start_guest", "execute", "after")
    with pytest.raises(StepError):
        script.conductor("", "start_guest", "execute", "before")
    script.conductor("", "set_aside", "revert", "before")
    script.worker("host1")("set_aside", "revert", "during", "rename")
    assert script.fired() == 0
    with pytest.raises(StepError):
        script.worker("host1")("set_aside", "revert", "during", "manifest")
    assert script.fired() == 1
    script.conductor("", "set_aside", "revert", "before")
    script.worker("host1")("set_aside", "revert", "during", "rename")
    script.worker("host1")("set_aside", "revert", "during", "manifest")


def test_a_script_refuses_one_alternate_only() -> None:
    script = Script.of(crash_points.parse("resize:retry:claim:pause:before"), "start_guest")
    asked: list[str] = []
    script.ask = asked.append
    with pytest.raises(DestinationFault):
        script.conductor("", "start_guest", "execute", "before")
    script.conductor("", "start_guest", "execute", "before")
    script.conductor("", "claim", "revert", "before")
    assert (asked, script.accepted()) == (["pause"], True)


def test_a_fault_in_an_undo_waits_until_the_flow_was_turned_back() -> None:
    """On its way forward the copy takes back what the source offered: a host's undo, and none of the flow's."""
    no_return = registry.latest("resize").no_return.step_name()
    script = Script.of(crash_points.point("resize", "retry", "copy_disks", "fail", "effect.source.1"), no_return)
    at_source = script.worker("host1")
    script.conductor("move", "copy_disks", "execute", "before")
    at_source("copy_disks", "revert", "during", "")
    assert script.fired() == 0
    with pytest.raises(DestinationFault):
        script.conductor("move", no_return, "execute", "before")
    script.conductor("move", "copy_disks", "revert", "before")
    with pytest.raises(StepError, match="fault at"):
        at_source("copy_disks", "revert", "during", "")
    assert script.fired() == 1
