"""Runs one daemon and collects the processes that it leaves behind: ``subreaper.py UID:GID|- COMMAND...``.

QEMU makes itself a daemon, so that process 1 would become its parent. Where process 1 collects ended children late,
each power-off would wait for it. The program passes a SIGTERM on to all children and ends when none is left. It imports
nothing of droveway.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36


def pass_on(number: int, _frame: object) -> None:
    """Send the signal to every child."""
    for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii").split():
        os.kill(int(pid), number)


def main(owner: str, command: list[str]) -> None:
    """Start the command as ``owner`` and wait until all that came of it has ended."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGTERM, pass_on)
    if owner == "-":
        subprocess.Popen(command)
    else:
        user, group = (int(part) for part in owner.split(":"))
        subprocess.Popen(command, user=user, group=group, extra_groups=[])
    while True:
        try:
            os.wait()
        except ChildProcessError:
            break


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
