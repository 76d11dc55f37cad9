"""How a demonstration proves that no server ran twice and that a moved one is the same: by its guests.

Sandbox guests write a log of the whole lab.  Those of libvirt are asked over their serial lines, in processes of their
own: the demonstration's, which forks its commands, may hold no connection.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Protocol

from droveway.errors import DrovewayError
from droveway.lab import cloud
from droveway.lab.layout import Layout
from droveway.lab.session import Lab
from droveway.persistence.nova import catalog
from droveway.workers.hypervisors import guests_log


class Failed(DrovewayError):
    """The demonstration did not go as it must: {what}."""


class Teller(Protocol):
    """The demonstration, as far as guests need it."""

    def say(self, text: str) -> None:
        """Print a line or several."""

    def show(self, *words: str) -> None:
        """Give one command and print what it says; raises Failed when it does not succeed."""

    def apart(self, work: Callable[[list[str]], int], *words: str) -> None:
        """Do the work in a process of its own and print what it says; raises Failed unless it returns 0."""


class SandboxGuests:
    """Guests that are heard once, at the end."""

    def __init__(self, _cloud: cloud.Cloud, files: Layout) -> None:
        self._log = files.guests_log

    def begin(self, _demo: Teller) -> None:
        """Nothing has to be made ready."""

    def after(self, _demo: Teller, _servers: Collection[str]) -> None:
        """The log tells of every moment, whenever it is read."""

    def conclude(self, demo: Teller) -> None:
        """Read the log; raises Failed when two runs of a server overlapped."""
        if overlaps := guests_log.overlaps(self._log):
            raise Failed("; ".join(map(str, overlaps)))
        starts = sum(event.event == "start" for event in guests_log.events(self._log))
        demo.say(f"guests.log: {starts} starts of guests, no server ever ran twice at a time")


class LibvirtGuests:
    """Guests that are branded at the beginning and asked after every round."""

    def __init__(self, spec: cloud.Cloud, files: Layout) -> None:
        self._root = str(files.root)
        self._all = list(spec.servers)
        self._stopped = [name for name, server in spec.servers.items() if server.state == "stopped"]

    def begin(self, demo: Teller) -> None:
        """Let every guest write a mark and data into its disk, the stopped ones as well."""
        demo.say("\neach guest writes a mark and data into its own disk; a stopped server runs for that long")
        for server in self._stopped:
            demo.show("lab", "server", "start", server)
        demo.apart(_brand, self._root, *self._all)
        self._reckon()
        for server in self._stopped:
            demo.show("lab", "server", "stop", server)

    def _reckon(self) -> None:
        """Reckon once, for all processes to come, what each guest's data must sum up to."""
        from proofs import guest_check

        lab = Lab.open(Path(self._root))
        try:
            for server in catalog.servers(lab.api, lab.cell_databases):
                guest_check.expected_checksum(server.id)
        finally:
            lab.close()

    def after(self, demo: Teller, servers: Collection[str]) -> None:
        """Ask every guest; the answers of these servers are shown."""
        demo.apart(_examine, self._root, "", *servers)

    def conclude(self, demo: Teller) -> None:
        """Start the stopped servers too, and ask and show them all."""
        for server in self._stopped:
            demo.show("lab", "server", "start", server)
        demo.apart(_examine, self._root, ",".join(self._stopped), *self._all)


def _brand(words: list[str]) -> int:
    from proofs import guest_check

    root, *servers = words
    lab = Lab.open(Path(root))
    for server in servers:
        guest_check.stamp(lab, server)
    return 0


def _examine(words: list[str]) -> int:
    """Root, names of servers that were started by hand, and names of those whose answers are printed."""
    from proofs import guest_check

    root, started, *shown = words
    asked = 0
    try:
        for told in guest_check.examine(Lab.open(Path(root)), started.split(",")):
            asked += 1
            if told.server.name in shown:
                status = told.status
                print(  # noqa: T201 - the demonstration shows what this process prints
                    f"{told.server.name} on {told.host}: boot {status.boots}, {status.vcpus} vCPUs, "
                    f"{status.memory_mb} MiB, {status.disk_sectors >> 21} GiB, mark {status.mark}, data {told.checksum}"
                )
    except DrovewayError as error:
        print(error)  # noqa: T201 - as above
        return error.exit_code
    print(  # noqa: T201 - as above
        f"{asked} guests asked: each is the one that was marked, runs once, where its server lives, with its flavor's "
        "sizes, and has booted as often as its moves tell"
    )
    return 0
