"""How often the daemon's keeper looks at the journal, over a clock that only its own waits move."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
from support.rigs.engine_rig import Rig, embedded_rig

from droveway.conf import settings
from droveway.engines import start
from droveway.engines.keeper import keeper
from droveway.engines.keeper.keeper import Keeper

LOOKS: Final = 4
"""Rounds after which a keeper here ends."""
WAITS: Final = 1000
"""More than it waits in so many rounds."""
PATIENCE: Final = 2.0
"""Seconds for which a person is to wait at most after a wish that files no flow, such as to lift a hold."""


class Waits(threading.Event):
    """Lets the time pass that it is asked to wait for, by halves; when it is set the rest of it does not pass."""

    def __init__(self, pass_: Callable[[float], None]) -> None:
        super().__init__()
        self._pass = pass_

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        for _half in range(2):
            if not self.is_set():
                self._pass(timeout / 2)
        return self.is_set()


class Looking(Keeper):
    """Notes when it looks instead, and runs in the thread that starts it."""

    now: float
    looked: list[float]
    meanwhile: Callable[[Looking], None] = staticmethod(lambda _keeper: None)

    def start(self) -> None:
        self.now, self.looked, self.waits = 1000.0, [], 0
        self._wakeup = Waits(self._pass)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(keeper, "time", SimpleNamespace(monotonic=lambda: self.now))
            self._run()

    def round(self) -> list[Any]:
        self.looked.append(self.now)
        self._stopped = len(self.looked) == LOOKS
        return []

    def _pass(self, seconds: float) -> None:
        self.waits += 1
        assert self.waits < WAITS
        self.now += seconds
        self.meanwhile(self)


@pytest.fixture(name="rig")
def fixture_rig(tmp_path: Path) -> Iterator[Rig]:
    with embedded_rig(tmp_path) as rig:
        yield rig


def looks(rig: Rig, monkeypatch: pytest.MonkeyPatch, folder: Path) -> Looking:
    """The keeper of a daemon once it has looked so often."""
    site: Any = SimpleNamespace(
        conf=settings.load(folder / "droveway.conf"),
        journal=rig.journal,
        api=None,
        cells=None,
        cloud=None,
        known_cells={},
    )
    monkeypatch.setattr(start, "Keeper", Looking)
    found = start.keeper(site, rig.session())
    assert isinstance(found, Looking)
    return found


@pytest.mark.parametrize("every", [start.KEEPER_ROUND, 7.0])
def test_a_daemons_keeper_looks_once_in_each_period(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, every: float
) -> None:
    monkeypatch.setattr(start, "KEEPER_ROUND", every)
    found = looks(rig, monkeypatch, tmp_path)
    assert found.looked == pytest.approx([1000.0 + number * every for number in range(LOOKS)])


def test_nobody_waits_long_for_what_files_no_flow() -> None:
    assert start.KEEPER_ROUND <= PATIENCE


def test_a_keeper_that_is_woken_looks_at_once_and_a_period_after_that(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    every, woken = start.KEEPER_ROUND, []

    def wake(looking: Looking) -> None:
        if len(looking.looked) == 2 and not woken:
            woken.append(looking.now)
            looking.wake()

    monkeypatch.setattr(Looking, "meanwhile", staticmethod(wake))
    found = looks(rig, monkeypatch, tmp_path)
    assert woken[0] < 1000.0 + 2 * every
    assert found.looked == pytest.approx([1000.0, 1000.0 + every, woken[0], woken[0] + every])
