"""A process that heals a lab over the real services and dies before it writes a profile.

It is spawned, since the test's own has threads.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from support.servers import openstack_lab

from droveway.audit.heal import mending
from droveway.clients.network import Network
from droveway.lab import books
from droveway.lab.session import Lab


def killed(root: Path, configuration: Path, *, profile: int) -> None:
    """Let a process heal the lab, whose end is a SIGKILL when it is about to write this profile, counted from 1."""
    child = multiprocessing.get_context("spawn").Process(target=_heal, args=(root, configuration, profile))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL, child.exitcode


def _heal(root: Path, configuration: Path, profile: int) -> None:
    write, begun = Network.set_profile, list[str]()

    def write_or_die(network: Network, port: str, wanted: Any) -> None:
        begun.append(port)
        if len(begun) == profile:
            os.kill(os.getpid(), signal.SIGKILL)
        write(network, port, wanted)

    with openstack_lab.reached(configuration), pytest.MonkeyPatch.context() as patch:
        patch.setattr(Network, "set_profile", write_or_die)
        sources = books.sources(Lab.open(root))
        planned = mending.plan(sources, frozenset())
        list(mending.heal(sources, planned, who="ana", away=frozenset()))
