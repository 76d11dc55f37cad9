"""The independent model of a soak, and the plans whose seed decides them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace
from proofs.soak import cloud as soak_cloud
from proofs.soak import process as soak_process
from proofs.soak import verdict as soak_verdict
from proofs.soak.model import Model, ModelBroken, ReportedMove, Server, Size, differences, usages
from proofs.soak.plan import Planner
from proofs.soak.process import Line, Operation
from proofs.soak.rest import Facts, Seen

from droveway.lab import cloud

FLAVORS = {"small": Size(1, 1024, 2), "large": Size(2, 2048, 4, ephemeral_gb=1, swap_mb=64)}
SMALL = {"VCPU": 1, "MEMORY_MB": 1024, "DISK_GB": 2}
LARGE = {"VCPU": 2, "MEMORY_MB": 2048, "DISK_GB": 6}
RESIZE = ReportedMove("m1", "id", "resize", "verifying", "b", "large")


@pytest.fixture
def model() -> Model:
    made = Model(FLAVORS)
    made.created(Server("id", "web", "a", "small", from_volume=False, active=True))
    return made


def ended(state: str, move: ReportedMove = RESIZE) -> ReportedMove:
    return dataclasses.replace(move, state=state)


def test_a_server_at_rest_holds_its_flavor(model: Model) -> None:
    assert model.allocations() == {"id": {"a": SMALL}}


def test_a_server_that_boots_from_a_volume_holds_no_root_disk(model: Model) -> None:
    model.created(Server("v", "db", "a", "small", from_volume=True, active=True))
    assert model.allocations()["v"] == {"a": {"VCPU": 1, "MEMORY_MB": 1024}}


def test_a_move_that_waits_holds_both_halves(model: Model) -> None:
    model.tell([RESIZE])
    assert model.allocations() == {"id": {"b": LARGE}, "m1": {"a": SMALL}}
    assert usages(model.allocations()) == {"a": SMALL, "b": LARGE}


def test_on_one_host_the_halves_add_up(model: Model) -> None:
    model.tell([dataclasses.replace(RESIZE, destination="a")])
    assert usages(model.allocations()) == {"a": {"VCPU": 3, "MEMORY_MB": 3072, "DISK_GB": 8}}


@pytest.mark.parametrize(
    ("state", "left"),
    [("done", {"b": LARGE}), ("reverted", {"a": SMALL}), ("failed", {"a": SMALL}), ("cancelled", {"a": SMALL})],
)
def test_a_move_that_ended_leaves_one_half(model: Model, state: str, left: dict[str, object]) -> None:
    model.tell([ended(state)])
    assert model.allocations() == {"id": left}
    assert model.ended() == {"m1"}


@pytest.mark.parametrize(("state", "left"), [("done", {"b": LARGE}), ("reverted", {"a": SMALL})])
def test_a_move_that_waited_ends(model: Model, state: str, left: dict[str, object]) -> None:
    model.tell([RESIZE])
    model.tell([ended(state)])
    assert model.allocations() == {"id": left}


SHELVE = ReportedMove("m1", "id", "shelve", "done", "", "small")


def test_a_shelved_server_holds_nothing_until_it_is_unshelved(model: Model) -> None:
    model.servers["id"].active = False
    model.tell([SHELVE])
    assert model.allocations() == {}
    model.tell([ReportedMove("m2", "id", "cross_cell_unshelve", "cancelled", "b", "small")])
    assert model.allocations() == {}
    model.tell([ReportedMove("m3", "id", "cross_cell_unshelve", "done", "b", "small")])
    assert model.allocations() == {"id": {"b": SMALL}}
    assert model.servers["id"].active


@pytest.mark.parametrize(
    "moves",
    [
        [SHELVE, dataclasses.replace(SHELVE, id="m2")],
        [dataclasses.replace(SHELVE, kind="unshelve", destination="b")],
        [ended("needs-operator", SHELVE)],
    ],
)
def test_a_shelve_that_cannot_be_is_refused(model: Model, moves: list[ReportedMove]) -> None:
    with pytest.raises(ModelBroken):
        model.tell(moves)


def test_a_deleted_server_leaves_nothing(model: Model) -> None:
    model.tell([RESIZE])
    model.deleted("id")
    model.tell([ended("done")])
    assert model.allocations() == {}


@pytest.mark.parametrize(
    ("moves", "what"),
    [
        ([ended("running")], "rests as running"),
        ([ended("needs-operator")], "rests as needs-operator"),
        ([RESIZE, ended("failed")], "was complete and is failed"),
        ([ended("done"), RESIZE], "had ended as done"),
        ([RESIZE, dataclasses.replace(RESIZE, id="m2")], "has another, m2"),
        ([dataclasses.replace(RESIZE, kind="delete", state="done")], "is still there"),
    ],
)
def test_what_cannot_be_is_refused(model: Model, moves: list[ReportedMove], what: str) -> None:
    with pytest.raises(ModelBroken, match=what):
        model.tell(moves)


def test_books_that_differ_are_named() -> None:
    assert differences({"a": 1, "b": 2}, {"a": 1, "b": 3, "c": 4}) == ["b: 3 and not 2", "c: 4 and not nothing"]
    assert differences({"a": 1}, {"a": 1}) == []


def test_the_cloud_of_the_soak_is_one() -> None:
    spec = cloud.parse_cloud(soak_cloud.text(), "the soak's")
    assert {name: cell for cell, name, _ in spec.hosts()} == soak_cloud.HOSTS
    for name, flavor in spec.flavors.items():
        for from_volume in (False, True):
            wanted = cloud.needs(flavor, boots_from_volume=from_volume)
            assert soak_cloud.FLAVORS[name].amounts(from_volume=from_volume) == wanted


def filled() -> Model:
    model = Model(soak_cloud.FLAVORS)
    for number in range(soak_cloud.POPULATION):
        model.created(Server(f"{number}", f"s{number}", "host1", "small", from_volume=False, active=True))
    return model


@pytest.mark.parametrize("change", [lambda _model: None, lambda model: model.deleted("3")])
def test_a_seed_decides_the_plan(change: Callable[[Model], None]) -> None:
    plans = [[planner.episode(model) for _ in range(40)] for planner, model in ((Planner(7), filled()) for _ in "ab")]
    assert plans[0] == plans[1]
    other = filled()
    change(other)
    assert [Planner(8).episode(other)] != plans[0][:1]


def test_every_kind_of_operation_is_planned() -> None:
    planner, model = Planner(1), filled()
    model.tell([dataclasses.replace(RESIZE, server="1", flavor="medium", destination="twice")])
    model.tell([dataclasses.replace(SHELVE, id="m2", server="2")])
    episodes = [planner.episode(model) for _ in range(300)]
    operations = [each for episode in episodes for each in episode.operations]
    verbs = {each.words[:3] if each.words[0] == "lab" else each.words[:2] for each in operations}
    assert {("server", verb) for verb in ("resize", "migrate", "confirm", "revert", "shelve", "unshelve")} <= verbs
    into_cells = {each.words[1] for each in operations if "--to-cell" in each.words}
    assert into_cells == {"resize", "migrate", "unshelve"}
    assert {("move", verb) for verb in ("cancel", "pause", "resume", "retry")} <= verbs
    assert {("host", "enable"), ("host", "disable"), ("lab", "server", "delete"), ("lab", "fault", "arm")} <= verbs
    actions = {each.words[each.words.index("--action") + 1] for each in operations if "--action" in each.words}
    assert actions == {"fail", "stall", "kill", "enospc", "corrupt"}
    assert {len(episode.processes) for episode in episodes} == {1, 2, 3}
    assert any(episode.kills for episode in episodes)
    numbers = [each.number for each in operations]
    assert numbers == list(range(1, len(numbers) + 1))


def test_few_servers_become_many() -> None:
    planned = Planner(1).episode(Model(soak_cloud.FLAVORS))
    made = [each for each in planned.operations if each.words[:3] == ("lab", "server", "create")]
    assert len(made) == soak_cloud.POPULATION


def test_half_a_line_is_no_line(tmp_path: Path) -> None:
    record = tmp_path / "record"
    assert soak_process.read(record) == {}
    record.write_text('{"number":1}\n{"number":1,"code":0,"said":"so"}\n{"number":2}\n{"number":2,"co')
    assert soak_process.read(record) == {1: Line(1, code=0, said="so"), 2: Line(2)}


MOVE = "11111111-2222"
SEEN = Seen("id", "web", "a", "small", "ACTIVE", ["a"], [])
RIGHT = Facts([], [], [SEEN], {"id": {"a": SMALL}}, {"a": SMALL}, [])


def test_a_lab_that_is_the_models_differs_in_nothing(model: Model) -> None:
    assert soak_verdict.differing(model, RIGHT) == []


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"wrong": ["audit: this"]}, "audit: this"),
        ({"allocations": {"id": {"a": LARGE}}}, "allocations are not the model's: id: "),
        ({"allocations": {}}, "allocations are not the model's: id: nothing and not "),
        ({"usages": {"a": SMALL, "b": SMALL}}, "usages are not the model's: b: "),
        ({"servers": []}, "servers are not the model's: web: nothing and not "),
        ({"servers": [replace(SEEN, runs=["a", "b"])]}, "servers are not the model's: web: "),
        ({"servers": [replace(SEEN, status="SHUTOFF")]}, "servers are not the model's: web: "),
        ({"servers": [replace(SEEN, unmarked=["disk"])]}, "servers are not the model's: web: "),
    ],
)
def test_what_differs_is_told(model: Model, change: dict[str, object], what: str) -> None:
    (told,) = soak_verdict.differing(model, replace(RIGHT, **change))
    assert told.startswith(what)


def test_an_ephemeral_disk_that_came_later_has_no_mark(model: Model) -> None:
    facts = replace(RIGHT, servers=[replace(SEEN, unmarked=["disk.eph0"])])
    assert soak_verdict.differing(model, facts) == []
    model.servers["id"].ephemeral = True
    assert len(soak_verdict.differing(model, facts)) == 1


def test_a_move_that_nobody_asked_for_is_told(model: Model) -> None:
    facts = replace(RIGHT, moves=[dataclasses.replace(RESIZE, state="failed")])
    asked = Operation(1, ("server", "resize", "web", "--flavor", "large"))
    assert soak_verdict.unasked([asked], facts, model.servers) == []
    other = Operation(1, ("server", "migrate", "web"))
    assert soak_verdict.unasked([other], facts, model.servers) == ["nobody asked for resize of web, move m1"]


@pytest.mark.parametrize(
    ("words", "state", "broken"),
    [
        ("server confirm web", "done", False),
        ("server confirm web", "verifying", True),
        ("server revert web", "done", True),
        ("move cancel @web", "cancelled", False),
        ("move cancel @web", "done", True),
        ("lab server delete web", "done", True),
        ("lab server delete gone", "done", False),
    ],
)
def test_what_a_command_said_is_held_against_it(words: str, state: str, *, broken: bool) -> None:
    operation = Operation(1, tuple(words.split()))
    facts = replace(RIGHT, moves=[dataclasses.replace(RESIZE, id=MOVE, state=state)])
    lines = {1: Line(1, code=0, said=f"move {MOVE[:8]}  resize web ..."), 2: Line(2, code=0)}
    assert bool(soak_verdict.broken([operation], lines, facts)) is broken
    pause = Operation(2, ("move", "pause", f"@{operation.words[-1].removeprefix('@')}"))
    assert soak_verdict.broken([operation, pause], lines, facts) == []
