"""Conductors and workers as daemons, on a real ZooKeeper, a real PostgreSQL, and services behind HTTP."""

from __future__ import annotations

import configparser
import signal
from typing import Final

import pytest
from support.daemons.daemons import Installation
from support.labs.small_lab import assert_balanced, file_flow, history, until
from support.servers import mariadb_server, postgres_server

from droveway.clients.zookeeper import progress_path
from droveway.persistence.journal import moves
from droveway.persistence.journal.states import State

FAKETIME: Final = "/usr/$LIB/faketime/libfaketimeMT.so.1"

SERVERS: Final = ("postgresql", "mariadb")

EVERYWHERE: Final = pytest.mark.parametrize("site", ["sqlite", *SERVERS], indirect=True)


@EVERYWHERE
def test_a_move_goes_there_and_back(site: Installation) -> None:
    """Workers carry out what conductors ask of them; SIGTERM ends each of them with 0."""
    workers = site.workers()
    conductor = site.conductor()
    move = file_flow(site.lab, "resize")
    assert site.await_rest(move) == State.VERIFYING, conductor.text()
    assert_balanced(site.lab)
    file_flow(site.lab, "revert")
    assert site.await_rest(move) == State.REVERTED, conductor.text()
    assert_balanced(site.lab)
    for secret in (postgres_server.PASSWORD, mariadb_server.PASSWORD):
        assert site.places_of(secret) == []
    for daemon in (conductor, *workers.values()):
        daemon.stop()
        assert "Traceback" not in daemon.log.read_text(), daemon.text()


@pytest.mark.parametrize("site", ["postgresql"], indirect=True)
def test_an_operator_submits_and_follows_a_move(site: Installation) -> None:
    """R1-40: submitting returns at once; the move is waited for, confirmed and looked at by other commands.

    What it keeps of its source goes as soon as that is asked.
    """
    site.workers()
    code, said, complained = site.droveway("move", "create", "web", "--flavor", "large", "--keep-source", "7d")
    assert (code, complained) == (0, ""), complained
    move = said.split()[1]
    assert f"follow it with  droveway move watch {move}" in said
    with site.lab.journal.read() as session:
        assert moves.find(session, move).state == State.QUEUED, "no conductor is there to run it"
    assert site.droveway("move", "show", move, "-f", "value", "-c", "waits_for")[1].startswith("a conductor: ")
    site.conductor()
    code, said, complained = site.droveway("move", "wait", move)
    assert (code, complained) == (0, ""), complained
    assert "resize web  host1 → host" in said
    assert "verifying" in said
    assert site.droveway("move", "confirm", move)[0] == 0
    assert site.droveway("move", "watch", move)[0] == 0
    code, said, complained = site.droveway("move", "show", move, "-f", "value", "-c", "state")
    assert (code, said, complained) == (0, "done\n", "")
    assert site.droveway("server", "show", "web", "-f", "value", "-c", "flavor") == (0, "large\n", "")
    assert_balanced(site.lab)
    shown = site.told("move", "show", move)
    kept = site.lab.layout.host("host1") / "instances" / shown["kept_as"]
    assert (kept / "disk").is_file()
    assert "host host1 purges it" in site.droveway("move", "purge-kept", move)[1]
    until(lambda: not kept.exists(), "the purge")
    assert_balanced(site.lab)


@EVERYWHERE
def test_another_conductor_goes_on_where_one_was_killed(site: Installation) -> None:
    site.workers()
    first = site.conductor("first")
    move = file_flow(site.lab, "resize")
    site.await_step(move, "copy_disks")
    first.kill()
    second = site.conductor("second")
    assert site.await_rest(move) == State.VERIFYING, second.text()
    assert_balanced(site.lab)


@pytest.mark.parametrize(
    ("site", "step"), [("postgresql", "move_ports"), ("mariadb", "switch_records")], indirect=["site"]
)
def test_databases_that_go_away_in_the_middle_of_a_move_lose_nothing(site: Installation, step: str) -> None:
    """What was not known to be committed is looked up again; no error says how the server is reached."""
    assert site.server is not None
    site.workers()
    conductor = site.conductor()
    move = file_flow(site.lab, "resize")
    site.await_step(move, step)
    site.server.kill()
    until(lambda: "The keeper waits for ZooKeeper or a database" in conductor.text(), "that the conductor notices")
    site.server.start()
    end = site.await_rest(move)
    assert end == State.VERIFYING, [
        (row.step, row.direction, row.error) for row in history(site.lab, move) if row.error
    ]
    said = conductor.log.read_text()
    assert said.count("The keeper waits for ZooKeeper or a database") == 2, "once when it went, once when it came back"
    assert "Traceback" not in said
    assert_balanced(site.lab)
    for secret in (postgres_server.PASSWORD, mariadb_server.PASSWORD):
        assert site.places_of(secret) == []


def test_a_reload_takes_over_what_can_be_changed(site: Installation) -> None:
    """SIGHUP: the level of the log, as oslo.config's mutable options are; the process stays the same."""
    conductor = site.conductor()
    assert " DEBUG " not in conductor.log.read_text()
    with site.configuration.open("a") as file:
        file.write("[DEFAULT]\ndebug = true\n")
    conductor.process.send_signal(signal.SIGHUP)
    until(lambda: "Option DEFAULT.debug changed" in conductor.log.read_text(), "the reload")
    assert conductor.process.poll() is None


@pytest.mark.parametrize(
    ("group", "option"),
    [("placement", "endpoint"), ("neutron", "endpoint_override"), ("cinder", "endpoint_override")],
)
def test_a_service_that_does_not_answer_is_named_before_anything_starts(
    site: Installation, group: str, option: str
) -> None:
    settings = configparser.ConfigParser(interpolation=None)
    settings.read(site.configuration)
    settings[group][option] = "http://127.0.0.1:1/"
    with site.configuration.open("w") as file:
        settings.write(file)
    code, _, said = site.droveway("conductor", "run")
    assert code == 2
    assert said.splitlines()[-1].endswith(f"start it, or correct [{group}]")


@pytest.mark.parametrize("site", ["postgresql"], indirect=True)
@pytest.mark.parametrize(("shift", "said"), [("+1h", "60 minutes ahead of"), ("-1h", "60 minutes behind")])
def test_a_clock_that_is_off_is_named_before_anything_starts(
    site: Installation, monkeypatch: pytest.MonkeyPatch, shift: str, said: str
) -> None:
    monkeypatch.setenv("LD_PRELOAD", FAKETIME)
    monkeypatch.setenv("FAKETIME", shift)
    code, _, told = site.droveway("conductor", "run")
    assert code == 2
    assert f"this machine's clock is {said} that of the database of [journal]" in told.splitlines()[-1]
    code, _, told = site.droveway("worker", "run", "--host", "host1")
    assert code == 2
    assert f"this machine's clock is {said} that of ZooKeeper" in told.splitlines()[-1]
    assert site.session.children(progress_path("host1")) == []
