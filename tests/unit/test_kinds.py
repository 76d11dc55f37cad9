"""What a kind of flow needs beside its record: whoever adds one is told here which file is next."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from proofs.crash import points as crash_points

from droveway.cli.registry import COMMANDS
from droveway.errors import IllegalTransition
from droveway.flows import registry
from droveway.persistence.journal import kinds
from droveway.persistence.journal.kinds import KINDS, Carries, Ending, Evacuation, Kind
from droveway.persistence.journal.states import ENDED, State, check_transition
from droveway.persistence.nova.vm_states import MigrationStatus, TaskState

ROOT = Path(__file__).parents[2]
RECORDS = "persistence/journal/kinds.py"

# Tests of single kinds name them, and the model of the soak shares no code with what it judges.
FREE = {"tests/unit", "tests/integration", "tests/support", "tests/proofs/soak/model.py"}

EVERY = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
EVERY_WITH_A_GRAPH = pytest.mark.parametrize("kind", [*map(kinds.of, registry.kinds())], ids=lambda kind: kind.name)


def states(ending: Ending | None) -> set[State]:
    found = () if ending is None else (ending.state, ending.never_confirmed, ending.to_be_deleted, ending.cancelled)
    return {state for state in found if state is not None}


# By hand, from what each operation does: the matrix and the moves both read the records, so neither judges them.
ENDS = {
    "resize": (Ending(State.VERIFYING), Ending(State.FAILED, None, State.DELETING, State.CANCELLED)),
    "migrate": (Ending(State.VERIFYING), Ending(State.FAILED, None, State.DELETING, State.CANCELLED)),
    "confirm": (Ending(State.DONE, None, State.DELETING), Ending(State.VERIFYING)),
    "revert": (Ending(State.REVERTED, None, State.DELETING), Ending(State.VERIFYING)),
    "delete": (Ending(State.DONE, State.CANCELLED), None),
    "cross_cell_resize": (Ending(State.VERIFYING), Ending(State.FAILED, None, State.DELETING, State.CANCELLED)),
    "cross_cell_migrate": (Ending(State.VERIFYING), Ending(State.FAILED, None, State.DELETING, State.CANCELLED)),
    "cross_cell_confirm": (Ending(State.DONE, None, State.DELETING), Ending(State.VERIFYING)),
    "cross_cell_revert": (Ending(State.REVERTED, None, State.DELETING), Ending(State.VERIFYING)),
    "cross_cell_revert_elsewhere": (Ending(State.REVERTED, None, State.DELETING), Ending(State.VERIFYING)),
    **{
        kind: (Ending(State.DONE, None, State.DELETING), Ending(State.FAILED, None, State.DELETING, State.CANCELLED))
        for kind in ("shelve", "unshelve", "cross_cell_unshelve")
    },
}
RUNNING = {
    "resize": State.RUNNING,
    "migrate": State.RUNNING,
    "confirm": State.CONFIRMING,
    "revert": State.REVERTING,
    "delete": State.DELETING,
    "cross_cell_resize": State.RUNNING,
    "cross_cell_migrate": State.RUNNING,
    "cross_cell_confirm": State.CONFIRMING,
    "cross_cell_revert": State.REVERTING,
    "cross_cell_revert_elsewhere": State.REVERTING,
    "shelve": State.RUNNING,
    "unshelve": State.RUNNING,
    "cross_cell_unshelve": State.RUNNING,
}


@EVERY
def test_a_move_ends_where_its_operation_says(kind: Kind) -> None:
    why = f"say in ENDS and RUNNING of tests/unit/test_kinds.py, from what a {kind.name} does, where its move ends"
    assert (kind.done, kind.undone) == ENDS.get(kind.name), why
    assert kind.running == RUNNING.get(kind.name), why


def test_every_graph_is_of_a_declared_kind() -> None:
    for graph in registry.GRAPHS.values():
        assert graph.kind_record in KINDS, f"{graph.kind} has a graph and is not in KINDS of {RECORDS}: add it there"
    names = [kind.name for kind in KINDS]
    assert len(names) == len(set(names)), f"two kinds in KINDS of {RECORDS} have one name: {names}"


@EVERY
def test_a_kind_has_a_graph(kind: Kind) -> None:
    why = f"{kind.name} has no graph: write its steps' order in flows/{kind.name}.py, and list it in flows/registry.py"
    assert kind.name in registry.kinds(), why


@EVERY
def test_a_kind_can_be_asked_for(kind: Kind) -> None:
    why = (
        f"no command of droveway is called {kind.command!r}, by which a {kind.name} is asked for: list one in "
        f"cli/registry.py with its class in cli/commands, or name another in {RECORDS}"
    )
    assert kind.command in COMMANDS, why


@EVERY
def test_a_move_may_come_to_where_the_kind_brings_it(kind: Kind) -> None:
    """From where it is asked for into the flow, and from there to each of its ends."""
    first = State.VERIFYING if kind.ends_wait else State.QUEUED
    steps = {(first, kind.running)}
    steps |= {(kind.running, state) for state in states(kind.done) | states(kind.undone)}
    for old, new in steps:
        try:
            check_transition(old, new)
        except IllegalTransition as error:
            pytest.fail(f"{error}, and a {kind.name} leads there: allow it in _NEXT of persistence/journal/states.py")


@EVERY
def test_the_words_of_nova_are_those_that_nova_has(kind: Kind) -> None:
    statuses = {value for name, value in vars(MigrationStatus).items() if name.isupper()}
    tasks = {value for name, value in vars(TaskState).items() if name.isupper()}
    strange = {kind.begun_status, kind.end_status, *kind.tasks} - statuses - {""}
    strange |= set(kind.tasks.values()) - tasks
    assert not strange, f"{strange} of {kind.name} in {RECORDS} are no words of persistence/nova/vm_states.py"


@EVERY_WITH_A_GRAPH
def test_the_matrix_knows_where_each_point_of_a_kind_ends(kind: Kind) -> None:
    points = list(crash_points.singles(registry.latest(kind.name), {}))
    ends = {end for point in points for end in crash_points.expected_end(point, accepted=True)}
    assert points, f"tests/proofs/crash/points.py makes no point of {kind.name}"
    assert ends <= ENDED | {State.VERIFYING}, f"a {kind.name} rests as {ends}: its endings in {RECORDS} are no rests"
    assert kind.done.state in ends, f"no point of {kind.name} in tests/proofs/crash/points.py ends as {kind.done.state}"


@EVERY
def test_facts_of_a_kind_do_not_contradict_one_another(kind: Kind) -> None:
    """What its fields say together, see their docstrings."""
    assert not (kind.ends_wait and kind.leads_to_wait), (
        f"{kind.name} comes from the wait for confirm or revert, and is done in it: let leads_to_wait and ends_wait of "
        f"{RECORDS} tell which of the two it is, for all that ask for them take each flow for one alone"
    )
    assert kind.undone is not None or not kind.cancellable, "what goes forward only cannot be cancelled"
    assert kind.evacuation is not Evacuation.UNDONE or kind.undone is not None, "who goes forward only is not undone"
    assert not kind.leads_to_wait or kind.carries is Carries.TO_DESTINATION, "who did not move has nothing to confirm"
    assert not (kind.limited and kind.urgent), "what waits for room is taken in its turn"


def test_a_kind_of_another_release_is_none_of_ours() -> None:
    """Its flows are offered to conductors that know it, and nothing is done to its moves."""
    other = kinds.of("teleport")
    assert other.urgent
    assert not any(
        (other.cancellable, other.limited, other.deletes, other.leaves_known_rows, other.leads_to_wait, other.tasks)
    )
    assert other.carries is Carries.NOWHERE
    assert other.evacuation is Evacuation.IGNORED


def compared(source: str) -> Iterator[tuple[int, str]]:
    """Line and kind of each comparison of something called a kind with the name of one."""
    known = {kind.name for kind in KINDS}
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Compare):
            continue
        sides = [node.left, *node.comparators]
        called = [getattr(side, "attr", getattr(side, "id", "")) for side in sides]
        if not any(name.endswith("kind") for name in called):
            continue
        for value in (leaf.value for side in sides for leaf in ast.walk(side) if isinstance(leaf, ast.Constant)):
            if value in known:
                yield node.lineno, value


def test_nobody_compares_a_kind_with_a_name() -> None:
    """Such a comparison is a fact of the kind that has no name, and the next kind is forgotten there."""
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if name.startswith(".") or any(name == free or name.startswith(f"{free}/") for free in FREE):
            continue
        found += [f"{name}:{line} ({kind})" for line, kind in compared(path.read_text())]
    why = f"compare a kind with a name: {', '.join(found)}; give the fact that is meant a field in {RECORDS} instead"
    assert not found, why


@pytest.mark.parametrize(
    "source", ['kind == "resize"', 'move.kind != "delete"', 'run.kind in ("resize", "migrate")', '"confirm" == my_kind']
)
def test_a_comparison_is_found(source: str) -> None:
    assert list(compared(source))


@pytest.mark.parametrize("source", ['kind == "disk"', 'state == "resize"', "kinds.of(kind).deletes"])
def test_what_is_none_passes(source: str) -> None:
    assert not list(compared(source))
