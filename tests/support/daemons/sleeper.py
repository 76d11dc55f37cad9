"""A daemon that is asleep in many moves at once, in each at another place: see the folder `sleeping`."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

from support.daemons.daemons import LONG, Daemon
from support.labs.small_lab import until

PATIENCE: Final = 2 * LONG
"""Seconds within which it has to come to all places, however busy the machine is."""

TESTS: Final = Path(__file__).parents[2]
HABITS: Final = TESTS / "support" / "habits" / "sleeping"


class Sleeper:
    """One ``kind`` of daemon (conductor, worker): `daemon` is set to the one that was started in its `environment`."""

    daemon: Daemon

    def __init__(self, kind: str, folder: Path) -> None:
        self._folder = folder
        self._places: dict[str, str] = {}
        folder.mkdir()
        self.environment = {"PYTHONPATH": os.pathsep.join([str(HABITS / kind), str(TESTS)]), "SLEEPER": str(folder)}

    def close(self) -> None:
        """End it, asleep or not."""
        if self.daemon.process.poll() is None:
            self.daemon.kill()

    def passed(self) -> list[str]:
        """The places by which it came, each once, as long as none were wanted."""
        return list(dict.fromkeys(self._lines("passed")))

    def want(self, places: dict[str, str]) -> None:
        """Let it fall asleep in these servers' moves, each at its place, once it has come to all of them."""
        (self._folder / "new").write_text(json.dumps(places))
        (self._folder / "new").rename(self._folder / "places.json")
        self._places = places

    def await_sleep(self, is_unfit: Callable[[], bool] = lambda: False) -> None:
        """Wait until it sleeps; where ``is_unfit`` says so, it has to go on for a moment first."""

        def missing() -> Counter[str]:
            return Counter(self._places.values()) - Counter(self._lines("asleep"))

        def sleeps() -> bool:
            if self._state() != "T":
                return False
            if is_unfit():
                self.daemon.process.send_signal(signal.SIGCONT)
                return False
            return True

        until(lambda: not missing(), "that it comes to all places", PATIENCE)
        until(sleeps, "that it sleeps", PATIENCE)

    def wake(self) -> None:
        """Let it go on, and wait until it has come to an end with each of the servers."""
        assert self._state() == "T"
        (self._folder / "awake").touch()
        self.daemon.process.send_signal(signal.SIGCONT)
        until(
            lambda: set(self._lines("given-up")) == set(self._places), "that it gives up all that it slept in", PATIENCE
        )

    def _state(self) -> str:
        """As Linux tells it: T is stopped."""
        facts = Path(f"/proc/{self.daemon.process.pid}/stat").read_text()
        return facts.rpartition(")")[2].split()[0]

    def _lines(self, name: str) -> list[str]:
        path = self._folder / name
        return path.read_text().splitlines() if path.exists() else []
