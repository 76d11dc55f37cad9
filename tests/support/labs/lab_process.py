"""One conductor (with a keeper) or one worker of a lab as a process of its own, over a real ZooKeeper: see `main`."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
from pathlib import Path

import msgspec

from droveway.clients import zookeeper
from droveway.engines import start
from droveway.errors import DestinationFault
from droveway.lab import runner
from droveway.lab.session import Lab

PR_SET_PDEATHSIG = 1


class Spec(msgspec.Struct, kw_only=True):
    """What the process is."""

    root: str
    zookeeper: str
    session: float
    """Seconds that its session lasts without it."""
    parent: int
    host: str = ""
    """The host whose worker it is; a conductor without one."""
    kill: list[str] | None = None
    """Step, direction and phase (a worker's: effect) at which it kills itself."""
    kill_at: int = 1
    """The how-manieth time it does."""
    fail: str = ""
    """A step that a conductor always finds to fail through the destination's fault."""
    effects: str = ""
    """Where a worker writes a line before each effect."""


class Probe:
    """Kills the process, lets a step fail, and tells of every effect."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._met = 0

    def worker(self, step: str, direction: str, _phase: str, effect: str) -> None:
        with Path(self._spec.effects).open("a") as log:
            log.write(f"{step} {direction} {effect}\n")
        self._die_at(step, direction, effect)

    def conductor(self, _move: str, step: str, direction: str, phase: str) -> None:
        self._die_at(step, direction, phase)
        if (step, direction, phase) == (self._spec.fail, "execute", "before"):
            raise DestinationFault(f"{step} was made to fail", code="fault")

    def _die_at(self, *place: str) -> None:
        self._met += list(place) == self._spec.kill
        if self._met >= self._spec.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)


def main(text: str) -> None:
    """Run until killed; a SIGTERM stops it as a daemon is stopped."""
    spec = msgspec.json.decode(text, type=Spec)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != spec.parent:
        return
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    lab = Lab.open(Path(spec.root))
    probe = Probe(spec)
    session = zookeeper.connect(spec.zookeeper, timeout=spec.session)
    stops = []
    if spec.host:
        stops.append(runner.start_worker(lab, spec.host, session, probe=probe.worker).stop)
    else:
        stops.append(runner.start_conductor(lab, session, probe=probe.conductor).stop)
        stops.append(start.keeper(lab, session).stop)
    signal.sigwait({signal.SIGTERM})
    for stop in reversed(stops):
        stop()
    session.close()
    lab.close()


if __name__ == "__main__":
    main(sys.argv[1])
