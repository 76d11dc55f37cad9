"""What becomes of the daemon of a libvirt host."""

from __future__ import annotations

import signal
import time

from droveway.lab import libvirt_hosts
from droveway.lab.libvirt_hosts import LibvirtHost


def kill_daemon(host: LibvirtHost) -> None:
    """Kill the daemon alone, as a crash does; its guests go on."""
    pid = int((host.dir / "pid").read_text(encoding="ascii"))
    libvirt_hosts._signal_and_wait(pid, signal.SIGKILL, time.monotonic() + libvirt_hosts.STOP_SECONDS)
