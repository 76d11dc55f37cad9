"""What hosts answer is checked where it is read: what breaks its schema is one failure of that host, and no more."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from support.rigs.engine_rig import (
    GRAPHS,
    REMOTE,
    ChooseDestinations,
    FakeWorker,
    Finish,
    OnHost,
    Prepare,
    Rig,
    StartGuest,
    embedded_rig,
)
from support.rigs.valid_answers import VALID

from droveway.engines.conductor import answers
from droveway.errors import Refused
from droveway.flows.graph import Graph
from droveway.flows.run import DECLARED_DOWN, UNREACHABLE, Context
from droveway.flows.step import Where
from droveway.persistence.journal import kinds
from droveway.wire import codec, commands, queries
from droveway.wire.values import LONGEST_ERROR, MOST_FIELDS, Direction

HOST: Final = "host2"
WRONG: Final[list[Any]] = [None, True, -1, 0.5, "\x1b[2J", "x" * 5000, 2**70, [], [7], {}, {"a": {"a": [{}]}}]
MANY: Final = 300
NOT_PLAIN: Final[list[Any]] = [
    {"a": 1},
    [{"a": 1}],
    [["a"]],
    [1],
    [None],
    "\x1b[2J",
    ["\x1b[2J"],
    "x" * (LONGEST_ERROR + 1),
]
"""What no part of a connector is: nested, a list of anything but texts, unprintable, too long."""
LEFT_OUT: Final = {"move", "connector", "checksum", "backing", "backing_format", "why"}
"""What a worker may leave out."""


def command(action: str, direction: Direction = "execute", **details: Any) -> commands.Command:
    return commands.Command(
        key=f"f.s.{direction}.1",
        host=HOST,
        move="m",
        server="s",
        epoch=3,
        step="s",
        action=action,
        direction=direction,
        details=details,
        deadline=1.0,
    )


def answer(action: str, value: Any, direction: Direction = "execute") -> commands.Result:
    """The answer as it comes out of its node, checked."""
    asked = command(action, direction)
    node = msgspec.json.encode({"key": asked.key, "epoch": 3, "value": value})
    return answers.checked(asked, codec.decode_answer(node, asked.key))


def places(value: Any) -> Iterator[tuple[Any, ...]]:
    """Every place in the value, by the keys that lead to it."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield (key,)
        yield from ((key, *rest) for rest in places(inner))


def put(value: Any, place: tuple[Any, ...], wrong: Any) -> Any:
    """A copy of the value with this in that place."""
    changed = copy.deepcopy(value)
    within = changed
    for key in place[:-1]:
        within = within[key]
    within[place[-1]] = wrong
    return changed


def is_bad(result: commands.Result) -> bool:
    """Whether the answer is refused, in one printable sentence that names its host and no other."""
    if result.error is None:
        return False
    error = result.error
    assert (error["code"], error["host"], result.value) == (answers.BAD_ANSWER, HOST, None)
    assert error["message"].startswith(f"host {HOST} gave no valid answer to ")
    assert error["message"].isprintable()
    assert len(error["message"]) <= LONGEST_ERROR
    return True


@pytest.mark.parametrize("action", sorted(VALID))
def test_a_right_answer_is_taken_as_it_is(action: str) -> None:
    assert answer(action, VALID[action]).value == VALID[action]
    assert answer(action, {**VALID[action], "of_a_later_release": {"x": [1]}}).value == VALID[action]
    assert answer(action, {}, "revert").value == {}
    assert answer(action, None, "revert").value == {}


@pytest.mark.parametrize("action", sorted(VALID))
def test_a_wrong_answer_is_a_failure_of_its_host_and_never_an_exception(action: str) -> None:
    """Each part of each answer in turn missing, of another type, out of its bounds, nested or far too many."""
    right = VALID[action]
    for place in places(right):
        for wrong in WRONG:
            result = answer(action, put(right, place, wrong))
            if not is_bad(result):
                assert answer(action, result.value).value == result.value
    for key in right.keys() - LEFT_OUT:
        without = {each: value for each, value in right.items() if each != key}
        assert is_bad(answer(action, without)), key
        assert is_bad(answer(action, {**right, key: "\x1b[2J"})) or key == "definition"
        assert is_bad(answer(action, {**right, key: -1})), key
        assert is_bad(answer(action, {**right, key: [{}] * MANY})), key
        if isinstance(right[key], list):
            assert is_bad(answer(action, {**right, key: right[key] * MANY})), key


@pytest.mark.parametrize("action", sorted(action for action, value in VALID.items() if "connector" in value))
def test_a_connector_has_plain_values_alone(action: str) -> None:
    """Code looks at these, and no schema."""
    for value in (1, 1.5, True, None, "text", "", [], ["a", "b"]):
        taken = answer(action, {**VALID[action], "connector": {"a": value}})
        assert taken.value["connector"] == {"a": value}
    for value in NOT_PLAIN:
        assert is_bad(answer(action, {**VALID[action], "connector": {"a": value}})), value
    assert is_bad(answer(action, {**VALID[action], "connector": {f"a{n}": 1 for n in range(MOST_FIELDS + 1)}}))


@pytest.mark.parametrize("code", sorted(answers.CONDUCTOR_CODES))
def test_a_worker_does_not_speak_for_conductors(code: str) -> None:
    """That somebody declared its host down, for one: nobody would wait for it, and what it holds would be owed."""
    error = {"code": code, "message": "nobody is here", "host": HOST, "fault": "move"}
    assert is_bad(answers.checked(command("check_set_aside"), commands.Result(key="k", epoch=3, error=error)))


def test_what_conductors_act_on_is_no_workers_word() -> None:
    assert {DECLARED_DOWN, UNREACHABLE, answers.BAD_ANSWER} <= answers.CONDUCTOR_CODES


@pytest.mark.parametrize("changes", [{"code": "Not A Code"}, {"code": "x" * 100}, {"code": ""}, {"fault": "host1's"}])
def test_an_error_that_no_worker_gives_is_a_bad_answer(changes: dict[str, str]) -> None:
    error = {"code": "io", "message": "m", "host": HOST, "fault": "move", **changes}
    assert is_bad(answers.checked(command("stop_guest"), commands.Result(key="k", epoch=3, error=error)))


def test_an_error_is_filed_under_the_host_that_was_asked_or_its_source() -> None:
    def told(asked: commands.Command, host: str) -> str:
        error = {"code": "io", "message": "m", "host": host, "fault": "destination"}
        found = answers.checked(asked, commands.Result(key=asked.key, epoch=3, error=error)).error
        assert found is not None
        return found["host"]

    copying = command("copy_disks", source="host1")
    assert [told(copying, host) for host in (HOST, "host1", "host7", "")] == [HOST, "host1", HOST, HOST]
    assert told(command("set_aside", source="host1"), "host1") == HOST


@pytest.mark.parametrize("question", queries.QUERIES)
def test_a_page_of_an_answer_is_refused_and_nothing_else(question: str) -> None:
    """What an inquiry is answered with, in which each part in turn is wrong."""
    held = {
        "list_guests": {"type": "guest", "server": "s", "name": "n", "running": True, "defined": True, "vcpus": 1},
        "list_directories": {"type": "entry", "name": "n", "directory": True, "files": ["disk"]},
        "digest_disks": {"type": "digest", "name": "n", "disk": "d", "digest": "ab" * 32, "read": 1},
    }[question]
    held |= {"list_guests": {"memory_mb": 1}, "list_directories": {}, "digest_disks": {"size": 1}}[question]
    query = queries.Query(id="q", host=HOST, question=question, seconds=1.0)
    page = {"id": "q", "host": HOST, "reading": "r", "number": 0, "pages": 1, "held": [held], "error": ""}
    assert len(codec.decode_page(msgspec.json.encode(page), query, 0).held) == 1
    refused = 0
    for place in places(page):
        for wrong in WRONG:
            try:
                codec.decode_page(msgspec.json.encode(put(page, place, wrong)), query, 0)
            except Refused:
                refused += 1
    assert refused > len(WRONG) * 4


@pytest.fixture(name="rig")
def fixture_rig(tmp_path: Path) -> Iterator[Rig]:
    with embedded_rig(tmp_path) as rig:
        yield rig


def test_a_step_fails_with_the_one_code_under_the_host(rig: Rig) -> None:
    hand = FakeWorker(rig.session(), "h1", lambda asked: {"disks": 7} if asked.direction == "execute" else {})
    try:
        move = rig.submit(REMOTE)
        rig.post(move)
        rig.host().turn()
        row = rig.move(move)
        assert (row.state, row.error_code) == ("failed", "bad-answer")
        assert "host h1 gave no valid answer to set_aside" in (row.error or "")
        told = next(each.error for each in rig.history(move) if each.step == "on_host" and each.error)
        assert (told["code"], told["host"]) == ("bad-answer", "h1")
    finally:
        hand.stop()


class OnDestination(OnHost):
    """A step of the alternate that the move is on."""

    where = Where.DESTINATION

    def perform(self, ctx: Context) -> dict[str, Any]:
        return self._ask(ctx, "execute")

    def undo(self, ctx: Context) -> None:
        self._ask(ctx, "revert")

    def _ask(self, ctx: Context, direction: Any) -> dict[str, Any]:
        host, details = ctx.destination.host, commands.NoDetails()
        return ctx.run.command(
            ctx.step, direction, host=host, action="set_aside", details=details, deadline=self.deadline
        )


TRIED: Final = Graph(
    kind_record=kinds.MIGRATE,
    version=7,
    steps=(Prepare, ChooseDestinations),
    tried=(OnDestination, StartGuest),
    no_return=StartGuest,
    after=(Finish,),
)


def test_after_a_bad_answer_of_a_destination_the_next_one_is_tried(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(GRAPHS, ("migrate", 7), TRIED)
    bad = FakeWorker(rig.session(), "h2", lambda asked: {"disks": [{}]} if asked.direction == "execute" else {})
    good = FakeWorker(rig.session(), "h3", lambda _asked: {})
    try:
        move = rig.submit(TRIED)
        rig.post(move)
        rig.host().turn()
        assert (rig.move(move).state, rig.move(move).dest_host) == ("verifying", "h3")
        assert [each.direction for each in bad.seen] == ["execute", "revert"]
    finally:
        bad.stop()
        good.stop()
