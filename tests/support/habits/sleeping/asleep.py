"""A daemon that falls asleep as a whole, by SIGSTOP, once each of its servers is at a place of its own.

While there is no list of places it only writes down which ones it comes by.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import threading
import time
from collections import Counter
from pathlib import Path

FOLDER = Path(os.environ["SLEEPER"])
PLACES = FOLDER / "places.json"

_slept: set[str] = set()
_passed: Counter[tuple[str, str]] = Counter()


def pass_by(server: str, point: str) -> None:
    """Sleep if that is the server's place: a point, and how many times it was come by."""
    _passed[server, point] += 1
    place = f"{point} {_passed[server, point]}"
    if not PLACES.exists():
        _note("passed", place)
        return
    places, all_there = _wanted()
    if places.get(server) == place:
        _slept.add(server)
        _note("asleep", place)
        all_there.wait()


def give_up(server: str) -> None:
    """It comes to an end of what it did to the server; that is written down if it slept meanwhile."""
    if server in _slept:
        _slept.discard(server)
        _note("given-up", server)


def _note(name: str, line: str) -> None:
    with (FOLDER / name).open("a") as file:
        file.write(f"{line}\n")


def _sleep() -> None:
    """Until it may go on; woken up before that, it falls asleep again."""
    while True:
        # To this very thread: no other one gets the time to go on before the process stops.
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        if (FOLDER / "awake").exists():
            return
        time.sleep(0.01)


@functools.cache
def _wanted() -> tuple[dict[str, str], threading.Barrier]:
    places = json.loads(PLACES.read_text())
    return places, threading.Barrier(len(places), action=_sleep)
