"""Reads the sandbox's log of all guests, to prove that no two runs of a server overlap."""

from __future__ import annotations

from pathlib import Path

import msgspec


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One line of ``guests.log``: a start or a stop of a server's guest."""

    time: float
    event: str
    server: str
    host: str
    pid: int
    born: int = 0


class Overlap(msgspec.Struct, frozen=True):
    """A start of a server while another run of it had not ended."""

    start: Event
    run: Event

    def __str__(self) -> str:
        """Return one sentence about the overlap."""
        return (
            f"server {self.start.server} was started on {self.start.host} (pid {self.start.pid}) "
            f"while it ran on {self.run.host} (pid {self.run.pid})"
        )


def events(log: Path) -> list[Event]:
    """Return every start and stop in the order in which they were written; empty when there is no log yet.

    A last line without its newline is left out: its writer is still at it, or was killed.
    """
    try:
        whole, _, _torn = log.read_bytes().rpartition(b"\n")
    except FileNotFoundError:
        return []
    return [msgspec.json.decode(line, type=Event) for line in whole.splitlines()]


def overlaps(log: Path) -> list[Overlap]:
    """Return each start of a server while another run of it had not ended; empty when all is well.

    The order of the lines counts, not their times.  A guest locks the log to write its start line, and before that it
    writes the stop lines of runs that were killed.
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
    """Return the start of every run that has no stop line yet."""
    runs: dict[tuple[str, str, int, int], Event] = {}
    for event in events(log):
        run = (event.server, event.host, event.pid, event.born)
        if event.event == "start":
            runs[run] = event
        else:
            runs.pop(run, None)
    return list(runs.values())
