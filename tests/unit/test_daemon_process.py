"""What a daemon tells systemd, and when it does not."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from droveway.cli import daemon, systemd


@pytest.fixture(name="manager")
def fixture_manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A service manager's end of the notifications."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(5)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        yield listening


@pytest.fixture(name="signals")
def fixture_signals() -> Iterator[daemon.Signals]:
    kept = signal.getsignal(signal.SIGUSR1)
    yield daemon.Signals(signal.SIGUSR1)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGUSR1, kept)


def test_a_signal_that_another_thread_gets_wakes_the_one_that_waits(signals: daemon.Signals) -> None:
    """As after a SIGCONT, when the system gives it to any thread: no handler runs until this one wakes."""
    other = threading.Timer(0.3, lambda: signal.pthread_kill(threading.get_ident(), signal.SIGUSR1))
    other.start()
    began = time.monotonic()
    assert signals.wait(20) == signal.SIGUSR1
    assert time.monotonic() - began < 10
    other.join()


def test_what_is_said_reaches_the_manager(manager: socket.socket) -> None:
    systemd.notify(systemd.READY)
    assert manager.recv(64) == b"READY=1"


def test_an_abstract_socket_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"droveway-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(f"\0{name}")
        listening.settimeout(5)
        monkeypatch.setenv("NOTIFY_SOCKET", f"@{name}")
        systemd.notify(systemd.STOPPING)
        assert listening.recv(64) == b"STOPPING=1"


def test_nothing_is_said_where_nobody_listens(monkeypatch: pytest.MonkeyPatch, manager: socket.socket) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET")
    systemd.notify(systemd.READY)
    manager.setblocking(False)
    with pytest.raises(BlockingIOError):
        manager.recv(64)


@pytest.mark.parametrize(
    ("microseconds", "pid", "seconds"),
    [("", "", None), ("3000000", "", 3.0), ("3000000", "own", 3.0), ("3000000", "1", None)],
)
def test_the_watchdog_asks_only_the_process_that_it_names(
    monkeypatch: pytest.MonkeyPatch, microseconds: str, pid: str, seconds: float | None
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", microseconds)
    monkeypatch.delenv("WATCHDOG_PID", raising=False)
    if pid:
        monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()) if pid == "own" else pid)
    assert systemd.watchdog() == seconds


@pytest.mark.parametrize("late", [False, True])
def test_the_manager_hears_of_life_only_while_every_loop_turns(
    monkeypatch: pytest.MonkeyPatch, manager: socket.socket, signals: daemon.Signals, late: bool
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "400000")
    monkeypatch.delenv("WATCHDOG_PID", raising=False)
    looks = 0
    enough = threading.Event()

    def last_tick() -> float:
        nonlocal looks
        looks += 1
        if looks == 3:
            enough.set()
        return time.monotonic() - (60 if late else 0)

    def end() -> None:
        enough.wait(30)
        os.kill(os.getpid(), signal.SIGUSR1)

    thread = threading.Thread(target=end)
    thread.start()
    assert daemon.await_signal(signals, [time.monotonic, last_tick]) == signal.SIGUSR1
    thread.join()
    manager.settimeout(0.01)
    if late:
        with pytest.raises(TimeoutError):
            manager.recv(64)
    else:
        assert manager.recv(64) == b"WATCHDOG=1"


def test_a_signal_is_waited_for_without_a_watchdog(monkeypatch: pytest.MonkeyPatch, signals: daemon.Signals) -> None:
    monkeypatch.delenv("WATCHDOG_USEC", raising=False)
    os.kill(os.getpid(), signal.SIGUSR1)
    assert daemon.await_signal(signals, [time.monotonic]) == signal.SIGUSR1
