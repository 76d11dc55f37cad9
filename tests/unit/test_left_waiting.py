"""What a command says of a move that it leaves waiting, where somebody carries moves on and where nobody does."""

from __future__ import annotations

import datetime as dt
from types import SimpleNamespace
from typing import Any, Final

import pytest

from droveway.cli.commands import move as commands
from droveway.cli.commands import request
from droveway.persistence.journal.tables import Move

BEGAN: Final = dt.datetime(2026, 11, 21, 15, 0)  # noqa: DTZ001 - as databases hold it
AWAY: Final = "the worker of host host1 is away"
WANTED: Final = "its server is to be deleted: mend what the reason names, "


def waiting(**columns: Any) -> Move:
    """A move whose server's delete waits for its source."""
    known: dict[str, Any] = {
        "id": "0b6e2f7c-0000",
        "kind": "migrate",
        "server": "s",
        "server_name": "web",
        "state": "verifying",
        "hold": False,
        "source_host": "host1",
        "dest_host": "host3",
        "policy": "deadline",
        "delete_requested": True,
        "waits_for": AWAY,
        "created_at": BEGAN,
        "updated_at": BEGAN,
    }
    return Move(**known | columns)


def told(capsys: pytest.CaptureFixture[str], move: Move, *, run: bool) -> str:
    """The second line, which says what comes next."""
    site: Any = SimpleNamespace(runs_moves=lambda: run)
    assert request.finish(site, move, *request.AT_REST) == 0
    first, then = capsys.readouterr().out.splitlines()
    assert first == f"move 0b6e2f7c  migrate web  host1 → host3  verifying: {AWAY}"
    return then.strip()


@pytest.mark.parametrize(
    ("known", "command"),
    [(True, "droveway lab server delete web"), (False, "droveway move confirm 0b6e2f7c")],
    ids=["known", "deleted-by-nova"],
)
def test_a_delete_that_waits_in_a_lab_that_nobody_runs_names_its_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str, *, known: bool
) -> None:
    """Nothing there goes on by itself."""
    monkeypatch.setattr(commands, "is_known", lambda _site, _server: known)
    assert told(capsys, waiting(), run=False) == f"{WANTED}then: {command}"


def test_a_delete_that_waits_goes_on_by_itself_where_moves_are_carried_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, waiting(), run=True) == f"{WANTED}and it goes on by itself"


def test_a_wait_that_is_held_names_what_lifts_the_hold(capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, waiting(hold=True), run=False) == "it is held: droveway move resume 0b6e2f7c"
