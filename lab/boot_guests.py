"""Defines boot guests on libvirt hosts: guests whose serial line is a socket, over which a lab talks to them.

A boot guest runs a little machine code instead of an operating system (`droveway.lab.boot_image`).

Only the serial line differs from the definition that `droveway.workers.hypervisors.libvirt.hypervisor` makes for any
other guest.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from lxml import etree

from droveway.errors import Refused
from droveway.lab.console import ANSWER_SECONDS, Console
from droveway.lab.layout import SOCKET_PATH_BYTES
from droveway.workers.hypervisors import durable
from droveway.workers.hypervisors.libvirt import files as libvirt_files
from droveway.workers.hypervisors.libvirt.hypervisor import Libvirt
from droveway.workers.hypervisors.libvirt.xml import Domain

_LONGEST = "0" * 36


class BootGuests(Libvirt):
    """Drives the libvirt of one host of a lab, whose guests are boot guests.

    The sockets of their serial lines lie in the directory ``run_dir``. Raises `droveway.errors.Refused` when the path
    of that directory is too long for a socket.
    """

    def __init__(self, host: str, root: Path, *, run_dir: Path, **options: Any) -> None:
        super().__init__(host, root, **options)
        self._consoles = run_dir.absolute()
        if len(os.fsencode(self._console(_LONGEST))) > SOCKET_PATH_BYTES:
            raise Refused(f"{run_dir} is too long for sockets: a socket's path has at most {SOCKET_PATH_BYTES} bytes")
        self._logs = self.root / "consoles"

    def undefine(self, server: str) -> None:
        """Remove the guest's definition, and the file of its serial line."""
        super().undefine(server)
        durable.remove(self._logs / f"{server}.log")

    def probe_guest(self, server: str, *, seconds: float | None = None) -> dict[str, Any]:
        """Ask the boot guest for its status; raises StepError when it does not answer in time."""
        told = self.console(server).status(seconds or ANSWER_SECONDS)
        return {"boots": told.boots, "mark": told.mark, "vcpus": told.vcpus, "memory_mb": told.memory_mb}

    def write_mark(self, server: str, text: str) -> None:
        """Let the boot guest write ``text`` into its own disk."""
        self.console(server).mark(text)

    def console(self, server: str) -> Console:
        """Return the serial line of a server's boot guest."""
        return Console(self._console(server), server, self.host, lambda: self._running(server))

    def _adapt(self, wanted: Domain, server: str) -> None:
        super()._adapt(wanted, server)
        devices = wanted.root.find("devices")
        serial = devices.find("serial")
        if serial is None:
            serial = etree.SubElement(devices, "serial")
        for child in [*serial.iterchildren("source"), *serial.iterchildren("log")]:
            serial.remove(child)
        serial.set("type", "unix")
        serial.insert(0, etree.Element("source", mode="bind", path=str(self._console(server))))
        serial.insert(1, etree.Element("log", file=str(self._logs / f"{server}.log"), append="on"))
        # libvirt makes a console for the serial line, and refuses a console that differs from it.
        for console in devices.findall("console"):
            devices.remove(console)

    def _make_startable(self, server: str) -> None:
        super()._make_startable(server)
        self._logs.mkdir(exist_ok=True)
        if self._owner is not None:
            self._consoles.mkdir(exist_ok=True)
            libvirt_files.hand_over(self._owner, [self._logs, self._logs / f"{server}.log", self._consoles])

    def _console(self, server: str) -> Path:
        return self._consoles / f"{server}.con"
