"""What is shown of a move: the live view, the lines in its place, and the page of `move show`."""

from __future__ import annotations

import datetime as dt
import html
import io
import os
import signal
from typing import Any

import pytest
from rich.console import Console

from droveway.cli.commands.move import facts, owner
from droveway.cli.commands.request import sentence
from droveway.cli.view import live, marks, move_page, timeline, watching
from droveway.cli.view.columns import Dashed, dated
from droveway.cli.view.picture import Picture, ahead
from droveway.persistence.journal.tables import Move, MoveFlow, MoveStep

BEGAN = dt.datetime(2026, 11, 21, 15, 0)  # noqa: DTZ001 - as databases hold it
GIB = 1 << 30


def at(seconds: float) -> dt.datetime:
    return BEGAN + dt.timedelta(seconds=seconds)


def step(name: str, begins: float, ends: float | None, **others: Any) -> MoveStep:
    columns: dict[str, Any] = {"direction": "execute", "attempt": 1, "host": None, "error": None, "result": None}
    columns |= {"flow": "migrate", "flow_uuid": "f1", "seq": int(begins * 10) + 1} | others
    return MoveStep(step=name, started_at=at(begins), ended_at=None if ends is None else at(ends), **columns)


def move(**others: Any) -> Move:
    columns: dict[str, Any] = {
        "id": "0b6e2f7c-0000",
        "kind": "migrate",
        "server": "s",
        "server_name": "web",
        "state": "running",
        "flow_uuid": "f1",
        "step": "copy_disks",
        "step_number": 3,
        "step_count": 5,
        "attempt": 1,
        "hold": False,
        "source_host": "host1",
        "dest_host": "host3",
        "old_flavor": "small",
        "new_flavor": "small",
        "policy": "deadline",
        "asked_by": "ana",
        "delete_requested": False,
        "created_at": BEGAN,
        "updated_at": BEGAN,
    }
    return Move(**columns | others)


def picture(steps: list[MoveStep], **others: Any) -> Picture:
    of = {name: others.pop(name) for name in ("rate", "left", "silent", "rests", "is_run", "ahead") if name in others}
    return Picture(move=move(**others), steps=steps, now=at(20), **{"ahead": [], **of})


COPYING = [step("claim", 0, 0.4), step("reserve_ports", 0.5, 0.8), step("stop_guest", 1, 4, host="host1")]
COPYING.append(step("copy_disks", 4, None, host="host3"))
PROGRESS = {"progress_done": 8 * GIB, "progress_total": 16 * GIB, "progress_kept": 0}


def drawn(shown: Picture, note: str = "") -> list[str]:
    out = io.StringIO()
    Console(file=out, width=110).print(live.frame(shown, 110, note))
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_short_steps_share_a_line_and_long_ones_have_their_own() -> None:
    rows = [(row.mark, row.text, round(row.seconds, 1)) for row in picture(COPYING).rows()]
    assert rows == [
        ("✓", "claim, reserve_ports", 0.8),
        ("✓", "stop_guest on host1", 3.0),
        ("▸", "copy_disks on host3", 16.0),
    ]


def test_many_short_steps_are_named_by_their_ends() -> None:
    steps = [step(name, number, number + 0.1) for number, name in enumerate("abcde")]
    assert [row.text for row in picture(steps).rows()] == ["a … e (5 steps)"]


def test_failures_undos_and_attempts_are_told_apart() -> None:
    steps = [
        step("claim", 0, 0.4),
        step("copy_disks", 1, 2, host="host2", error={"code": "disk-full", "message": "host2 is full"}),
        step("claim", 2, 2.1, direction="revert"),
        step("claim", 3, 3.1, attempt=2),
    ]
    assert [(row.mark, row.text) for row in picture(steps).rows()] == [
        ("✓", "claim"),
        ("✗", "copy_disks on host2: host2 is full"),
        ("✓", "undo claim"),
        ("✓", "claim (attempt 2)"),
    ]


def test_an_earlier_flow_takes_one_line() -> None:
    steps = [step("claim", 0, 5, flow_uuid="f0"), step("finish", 5, 9, flow_uuid="f0"), step("mark", 10, None)]
    assert [row.text for row in picture(steps).rows()] == ["migrate, 2 steps", "mark"]


def test_the_view_has_bytes_a_bar_per_cent_rate_and_what_is_left() -> None:
    lines = drawn(picture(COPYING, **PROGRESS, rate=318.0 * (1 << 20), left=26.4, ahead=["start_guest", "then"]), "!")
    assert lines[0] == "move 0b6e2f7c  migrate web  host1 → host3"
    [told] = [line for line in lines if "GiB" in line]
    for part in ("8.0 of 16.0 GiB", "━", "50 %", "318.0 MiB/s", "26 s left to copy"):
        assert part in told
    assert lines[-3:] == ["    start_guest", "    then", "!"]
    assert drawn(picture(COPYING, ahead=[*"abcdefg", "then"]))[-5:] == [
        "    a",
        "    b",
        "    c",
        "    … 4 more",
        "    then",
    ]


@pytest.mark.parametrize(
    ("others", "told"),
    [
        ({"progress_kept": 2 * GIB}, "2.0 GiB of it kept"),
        ({"progress_done": 16 * GIB}, "all copied, being checked"),
        ({"silent": 9.0}, "nothing new for 9.0 s"),
    ],
)
def test_what_else_is_said_of_bytes(others: dict[str, Any], told: str) -> None:
    assert told in ", ".join(picture(COPYING, **PROGRESS | {"rate": 1.0, "left": 1.0} | others).progress())


def test_nothing_is_said_of_bytes_at_rest_or_before_the_first_word() -> None:
    assert picture(COPYING).progress() == []
    assert picture(COPYING, **PROGRESS, rests=True).progress() == []


def flow(kind: str = "migrate", version: int = 1) -> MoveFlow:
    return MoveFlow(uuid="f1", kind=kind, version=version)


def test_ahead_is_the_rest_of_the_graph_and_what_the_policy_does() -> None:
    names = ahead(move(), flow(), COPYING)
    assert names[0] == "fit_disks"
    assert "start_guest" in names
    assert names[-1] == "then it waits for your confirm or revert until its deadline, and is confirmed"
    assert ahead(move(policy="manual"), flow(), COPYING)[-1] == "then it waits for your confirm or revert"
    assert ahead(move(), flow(), [step("copy_disks", 0, None, direction="revert")]) == []
    assert ahead(move(state="queued"), flow(), [])[0] == "record_before"
    assert ahead(move(flow_uuid=None), None, []) == []


def test_ahead_is_the_graph_that_the_flow_began_with() -> None:
    confirming = move(state="confirming")
    assert "keep_copy" not in ahead(confirming, flow("confirm", 1), [])
    assert "keep_copy" in ahead(confirming, flow("confirm", 2), [])
    assert ahead(confirming, flow("confirm", 99), []) == [], "another release has it"


def test_lines_tell_each_change_once() -> None:
    out = io.StringIO()
    lines = watching.Lines(out)
    for done in (1, 1, 2):
        told = PROGRESS | {"progress_done": done * GIB}
        lines.update(picture(COPYING, **told), "a note")
    lines.update(picture([*COPYING[:-1], step("copy_disks", 4, 14, host="host3")]))
    assert out.getvalue().splitlines()[2:] == [
        "  ✓ stop_guest on host1  3 s",
        "  ▸ copy_disks on host3",
        "  ▸ copy_disks: 1.0 of 16.0 GiB, 6 %",
        "a note",
        "  ▸ copy_disks: 2.0 of 16.0 GiB, 12 %",
        "  ✓ copy_disks on host3  10 s",
    ]


def test_lines_leave_out_what_was_behind() -> None:
    out = io.StringIO()
    watching.Lines(out, picture(COPYING)).update(picture(COPYING))
    assert out.getvalue() == ""


def test_a_first_ctrl_c_is_raised_and_the_old_handler_comes_back() -> None:
    before, told = signal.getsignal(signal.SIGINT), []
    with pytest.raises(KeyboardInterrupt), watching.stoppable(lambda: told.append("first")):
        os.kill(os.getpid(), signal.SIGINT)
    assert told == ["first"]
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_ctrl_c_ends_the_process_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[object] = []
    monkeypatch.setattr(os, "_exit", said.append)
    with watching.stoppable(lambda: said.append("first"), lambda: said.append("second")):
        for _ in range(2):
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except KeyboardInterrupt:
                said.append("raised")
    assert said == ["first", "raised", "second", 130]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colours_and_marks_are_for_terminals_that_want_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert (marks.wants_colour(Terminal()), marks.wants_colour(io.StringIO())) == (True, False)
    monkeypatch.setenv("NO_COLOR", "1")
    assert (marks.wants_colour(Terminal()), marks.is_terminal(Terminal())) == (False, True)
    monkeypatch.setenv("TERM", "dumb")
    assert not marks.is_terminal(Terminal())
    assert marks.Marked("failed", coloured=False).human_readable() == "✗ failed"
    coloured = marks.Marked("failed", coloured=True)
    assert coloured.human_readable() == "\x1b[31m✗ failed\x1b[0m"
    assert marks.width(coloured.human_readable()) == len("✗ failed")
    assert coloured.machine_readable() == "failed"


def shown(of: Move, **claim: Any) -> dict[str, str]:
    found = facts(of) | owner(None) | claim
    lines = move_page.page(found, terminal=True, coloured=False).splitlines()
    return {line[:9].strip(): line[10:] for line in lines}


def test_the_page_of_a_running_move() -> None:
    now = dt.datetime.now(dt.UTC).replace(tzinfo=None)
    before = now - dt.timedelta(minutes=5)
    of = move(**PROGRESS | {"progress_kept": 2 * GIB}, progress_at=now, updated_at=now - dt.timedelta(seconds=130.5))
    page = shown(of, owner="c2", epoch=8123, claimed=before, unclean=1)
    assert page["move"] == "0b6e2f7c  migrate web, host1 → host3"
    assert page["state"] == "▸ running, step 3 of 5 (copy_disks), attempt 1, for 2 min 10 s"
    assert page["owner"] == (
        f"c2, since {dated(before)} (epoch 8123); 1 before it in a row ended without releasing the move"
    )
    assert page["progress"] == f"8.0 of 16.0 GiB (50 %), resumed at 2.0 GiB, told {dated(now)}"
    assert page["next"] == "nothing to do"


WAYS = [
    ({"dest_host": "host3", "state": "failed"}, "host1 → host3"),
    ({"dest_host": None}, "host1 → ?"),
    *(({"dest_host": None, "state": state}, "host1") for state in ("failed", "cancelled", "done")),
    ({"dest_host": None, "state": "deleting", "kind": "delete"}, "host1"),
    ({"dest_host": None, "state": "running", "kind": "shelve"}, "host1"),
    ({"dest_host": None, "state": "running", "kind": "unshelve", "source_host": ""}, "- → ?"),
    ({"dest_host": "host2", "state": "done", "kind": "unshelve", "source_host": ""}, "- → host2"),
    ({"dest_host": None, "state": "failed", "kind": "unshelve", "source_host": ""}, "-"),
]


@pytest.mark.parametrize(("columns", "way"), WAYS)
def test_a_destination_that_is_never_chosen_is_no_question(columns: dict[str, Any], way: str) -> None:
    """Wherever people read of the move: as it is watched, on its page, in its timeline and behind each command."""
    of = move(**columns)
    assert picture([], **columns).title.endswith(f" web  {way}")
    assert shown(of)["move"].endswith(f" web, {way}")
    assert f" web, {html.escape(way)}</h1>" in timeline.page(facts(of), [], at(0))
    assert f" web  {way}  {of.state}\n" in sentence(of)


def test_the_page_tells_how_fast_the_bytes_come_and_when_all_are_there() -> None:
    """Of this run: what is kept of an earlier one took no time."""
    now = dt.datetime.now(dt.UTC).replace(tzinfo=None)
    known = PROGRESS | {"progress_kept": 2 * GIB, "progress_seconds": 60.0, "progress_at": now, "updated_at": now}
    of = move(**known)
    assert (facts(of)["progress_rate"], facts(of)["progress_left"]) == (6 * GIB // 60, 80.0)
    said = "8.0 of 16.0 GiB (50 %), resumed at 2.0 GiB, 102.4 MiB/s, 1 min 20 s left to copy"
    assert shown(of)["progress"] == f"{said}, told {dated(now)}"
    proved = move(**known | {"progress_done": 16 * GIB})
    said = "16.0 of 16.0 GiB (100 %), resumed at 2.0 GiB, all copied, being checked"
    assert shown(proved)["progress"] == f"{said}, told {dated(now)}"


@pytest.mark.parametrize(
    ("kind", "says"), [("resize", True), ("shelve", False), ("unshelve", False), ("delete", False)]
)
def test_the_page_names_a_policy_only_where_a_move_waits_for_one(kind: str, *, says: bool) -> None:
    assert ("confirm" in shown(move(kind=kind))) == says


def test_a_move_from_no_host_has_none_for_programs_and_a_dash_for_people() -> None:
    found = facts(move(kind="unshelve", source_host=""))
    assert found["source"] is None
    assert (Dashed(None).human_readable(), Dashed(None).machine_readable()) == ("-", None)
    assert Dashed("host1").human_readable() == "host1"


def test_the_page_of_an_ended_move_has_no_owner_and_no_progress() -> None:
    page = shown(move(state="failed", error="host3 is full", ended_at=BEGAN, new_flavor="large", **PROGRESS))
    assert set(page) == {"move", "asked", "state", "why", "next"}
    assert page["why"] == "host3 is full"
    assert page["move"].endswith("host1 → host3, small → large")
    assert page["state"].startswith("✗ failed, ")


@pytest.mark.parametrize("long", [False, True])
def test_a_step_that_a_host_owes_is_not_shown_as_done(*, long: bool) -> None:
    undo = step("set_aside", 0, 2 if long else 0.1, direction="revert", host="host1", result={"owed": True})
    done = step("reserve_ports", 3, 3.1, direction="revert")
    shown = picture([undo, done], state="undoing")
    assert [(row.mark, row.text) for row in shown.rows()] == [
        (marks.OWED, "undo set_aside on host1: owed, not done"),
        (marks.DONE, "undo reserve_ports"),
    ]
    out = io.StringIO()
    watching.Lines(out).update(shown)
    assert out.getvalue().splitlines()[0] == "  · undo set_aside on host1: owed, not done"
