"""The undo of a stop waits for the end of what the stop began: a guest that shuts down slowly is not taken for one
that runs."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.rigs.worker_rig import SERVER, Cloud, KillAt, Killed, cloud

from droveway.wire import commands
from droveway.workers.hypervisors import guests_log

SLOW = commands.StopGuest(grace=0.2, restart=True)


@pytest.fixture(name="site")
def fixture_site(tmp_path: Path) -> Iterator[Cloud]:
    with cloud(tmp_path) as made:
        made.make_server()
        made.hosts["alpha"].hypervisor.start(SERVER, lambda: None)
        yield made


def runs(site: Cloud) -> list[guests_log.Event]:
    """Every start of the guest, oldest first."""
    return [event for event in guests_log.events(site.log) if event.event == "start"]


def is_on(site: Cloud) -> bool:
    guest = site.hosts["alpha"].hypervisor.guest(SERVER)
    return guest is not None and guest.running


def test_a_guest_that_goes_down_slowly_is_up_again_after_the_undo(site: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    host = site.hosts["alpha"].hypervisor
    (first,) = runs(site)

    def ask_and_die(*_: Any, **__: Any) -> None:
        # It has been asked, and does not get to it yet.
        os.kill(first.pid, signal.SIGSTOP)
        os.kill(first.pid, signal.SIGTERM)
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(host, "stop", ask_and_die)
        with pytest.raises(Killed):
            site.run("alpha", "stop_guest", SLOW)
    assert is_on(site)
    site.run("alpha", "stop_guest", SLOW, direction="revert")
    assert is_on(site)
    assert len(runs(site)) == 2
    assert runs(site)[-1].pid != first.pid
    site.run("alpha", "stop_guest", SLOW, direction="revert")
    assert len(runs(site)) == 2


@pytest.mark.parametrize("number", range(3))
def test_such_an_undo_may_be_killed_anywhere(site: Cloud, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    host = site.hosts["alpha"].hypervisor

    def ask_and_die(*_: Any, **__: Any) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(host, "stop", ask_and_die)
        with pytest.raises(Killed):
            site.run("alpha", "stop_guest", SLOW)
    with pytest.raises(Killed):
        site.run("alpha", "stop_guest", SLOW, direction="revert", probe=KillAt(number))
    site.run("alpha", "stop_guest", SLOW, direction="revert")
    assert is_on(site)
    assert len(runs(site)) == 2


def test_a_guest_that_was_never_asked_is_left_running(site: Cloud) -> None:
    with pytest.raises(Killed):
        site.run("alpha", "stop_guest", SLOW, probe=KillAt(0))
    site.run("alpha", "stop_guest", SLOW, direction="revert")
    assert is_on(site)
    assert len(runs(site)) == 1
