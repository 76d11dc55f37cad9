"""What the log of all guests proves: no two runs of a server overlap."""

from __future__ import annotations

from pathlib import Path

import msgspec


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One line of ``guests.log``."""

    time: float
    event: str
    server: str
    host: str
    pid: int
    born: int = 0


class Overlap(msgspec.Struct, frozen=True):
    """A start of a server that another run of it had not ended before."""

    start: Event
    run: Event

    def __str__(self) -> str:
        """One sentence about it."""
        return (
            f"server {self.start.server} was started on {self.start.host} (pid {self.start.pid}) "
            f"while it ran on {self.run.host} (pid {self.run.pid})"
        )


def events(log: Path) -> list[Event]:
    """Every start and stop, in the order in which they were written; none when there is no log yet.

    A line without an end is none: its writer is at it, or was killed.
    """
    try:
        whole, _, _torn = log.read_bytes().rpartition(b"\n")
    except FileNotFoundError:
        return []
    return [msgspec.json.decode(line, type=Event) for line in whole.splitlines()]


def overlaps(log: Path) -> list[Overlap]:
    """Each start of a server that another run of it had not ended before; empty when all is well.

    The order of the lines counts, not their times: a guest writes its start while it holds the log, after the runs
    that ended without a word have got their stop line.
    """
    under_way: dict[str, list[Event]] = {}
    found: list[Overlap] = []
    for event in events(log):
        runs = under_way.setdefault(event.server, [])
        if event.event == "start":
            found += [Overlap(event, run) for run in runs]
            runs.append(event)
        else:
            under_way[event.server] = [
                run for run in runs if (run.host, run.pid, run.born) != (event.host, event.pid, event.born)
            ]
    return found


def under_way(log: Path) -> list[Event]:
    """The start of every run that has no stop line (yet)."""
    runs: dict[tuple[str, str, int, int], Event] = {}
    for event in events(log):
        run = (event.server, event.host, event.pid, event.born)
        if event.event == "start":
            runs[run] = event
        else:
            runs.pop(run, None)
    return list(runs.values())
