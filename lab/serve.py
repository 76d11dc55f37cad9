"""Serves a lab: runs ZooKeeper, the lab's services, conductors and workers as processes until it is told to stop."""

from __future__ import annotations

import contextlib
import functools
import shutil
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from droveway.errors import DrovewayError, Refused
from droveway.lab import marks, serve_settings, serve_zookeeper, served, served_cloud
from droveway.lab.parts import Parts
from droveway.lab.serve_ports import free_port
from droveway.lab.serve_process import Process
from droveway.persistence.journal import daemons

POLL: Final = 0.1
"""Seconds between two checks of processes that are starting."""

ANSWERS_WITHIN: Final = 1.0
"""Seconds that the lab's services have to answer; when they do not, they are not ready yet."""

ENDS_WITHIN: Final = 180.0
"""Seconds that a process has to end after a SIGTERM, as in the units of systemd; then it is killed."""

_DROVEWAY: Final = (sys.executable, "-m", "droveway.cli.main")

Say = Callable[[str], object]
"""Shows a line to the operator who has started this."""

Wait = Callable[[float | None], bool]
"""Waits for a number of seconds, or without a limit for None; returns True when the lab is to stop.

The wait ends early when a process has died or the lab is to stop.
"""


def serve(lab: Parts, *, conductors: int, hosts: Sequence[str], say: Say, wait: Wait) -> None:
    """Serve the lab until ``wait`` returns True.

    Starts a worker for each of ``hosts``. If ``hosts`` is empty, starts one for each host whose worker is not stopped.

    Raises `droveway.errors.Refused` for a lab that cannot be served, and `droveway.errors.DrovewayError` when a process
    ends before it was ever ready.
    """
    chosen = _require(lab, hosts)
    files = lab.layout
    with served.held(files) as folder, marks.kept(files, lab.identity.hosts):
        stages = _stages(lab, folder, conductors, chosen)
        with contextlib.ExitStack() as stack:
            for stage in stages:
                # The last stage ends first. Every stage ends, even when ``say`` raises for another one because the
                # operator's terminal or pipe is closed.
                stack.callback(_end, stage, say)
                if not _started(stage, say, wait):
                    return
            processes = [process for stage in stages for process in stage]
            # A worker is ready before a conductor knows of it, and until then a move of its servers is refused.
            if not _watch(processes, say, wait, until=functools.partial(_are_known, lab, chosen)):
                return
            say(f"the lab {files.root} is served: Ctrl-C stops all")
            say(f"use it with:  export DROVEWAY_CONFIG_FILE={served.configuration(files)}")
            _watch(processes, say, wait)


def _require(lab: Parts, hosts: Sequence[str]) -> list[str]:
    """Return the hosts that get a worker; raises `droveway.errors.Refused` for what this machine or lab lacks."""
    chosen = sorted({*hosts} or {*lab.identity.hosts} - lab.away())
    if not chosen:
        raise Refused("the workers of all hosts are stopped: droveway lab worker start HOST, or name hosts with --host")
    if lab.identity.hypervisor != "sandbox":
        raise Refused(f"the lab {lab.layout.root} has libvirt hosts, but only sandboxes are served: make another lab")
    serve_zookeeper.require()
    if shutil.which("setpriv") is None:
        raise Refused("the Debian package util-linux is missing here, and with it setpriv: apt install util-linux")
    for host in hosts:
        lab.host(host)
    return chosen


def _stages(lab: Parts, folder: Path, conductors: int, hosts: Sequence[str]) -> list[list[Process]]:
    """Write all configuration, and return the processes by stages; each stage needs the stages before it."""
    files = lab.layout
    zookeeper, services = free_port(), free_port()
    config = served.configuration(files)
    settings = serve_settings.settings_of(
        lab, f"127.0.0.1:{zookeeper}", serve_settings.in_place(lab), services, Path(lab.identity.sockets)
    )
    # The lab's own options are written too, so that a served lab chooses hosts as its commands do.
    serve_settings.write(settings | served_cloud.image_settings(services), config, files.configuration)
    data = folder / "zookeeper"
    data.mkdir()
    zoo = folder / "zoo.cfg"
    zoo.write_text(serve_zookeeper.configuration(data, serve_zookeeper.plain(zookeeper)), encoding="utf-8")

    def daemon(name: str, *words: str) -> Process:
        return Process(name, [*_DROVEWAY, *words, *named], folder / f"{name}.log")

    named = ("--config-file", str(config))
    return [
        [
            Process(
                "zookeeper",
                serve_zookeeper.command(zoo),
                folder / "zookeeper.log",
                answers=functools.partial(serve_zookeeper.answers, zookeeper),
            )
        ],
        [
            Process(
                "cloud",
                [sys.executable, "-m", served_cloud.__name__, str(files.root), str(services)],
                folder / "cloud.log",
                answers=functools.partial(_answers, services),
            )
        ],
        [daemon(f"conductor-{number}", "conductor", "run") for number in range(1, conductors + 1)],
        [daemon(f"worker-{host}", "worker", "run", "--host", host) for host in hosts],
    ]


def _started(stage: Sequence[Process], say: Say, wait: Wait) -> bool:
    """Start the processes together and wait until all are ready; False when told to stop before that."""
    for process in stage:
        process.start()
    while not all(process.is_ready for process in stage):
        if wait(POLL):
            return False
        for process in stage:
            if not process.is_running():
                raise DrovewayError(f"{process.name} ended before it was ready: {_last_line(process.log)}")
            _look(process, say)
    return True


def _watch(processes: Sequence[Process], say: Say, wait: Wait, *, until: Callable[[], bool] | None = None) -> bool:
    """Start each process again that ends; return True once ``until`` holds, and False when told to stop."""
    while not (until and until()):
        if wait(None if until is None and all(process.is_ready for process in processes) else POLL):
            return False
        for process in processes:
            _look(process, say)
    return True


def _are_known(lab: Parts, hosts: Sequence[str]) -> bool:
    """Say whether a conductor has recorded the worker of each host as up."""
    with lab.journal.read() as session:
        known = daemons.known_workers(session)
    return known.current and not known.away(hosts)


def _look(process: Process, say: Say) -> None:
    if line := process.look():
        say(line)


def _end(stage: Sequence[Process], say: Say) -> None:
    """End the processes together; kill those that do not end in time, and tell the operator of each."""
    for process in stage:
        process.ask_to_end()
    deadline = time.monotonic() + ENDS_WITHIN
    for process in stage:
        if not process.await_end(max(0.0, deadline - time.monotonic())):
            say(f"{process.name} did not end within {ENDS_WITHIN:g} s and was killed; its log is {process.log}")
    say(f"ended: {', '.join(process.name for process in stage)}")


def _last_line(log: Path) -> str:
    said = log.read_text(encoding="utf-8", errors="replace").split("\n")
    return next((line for line in reversed(said) if line.strip()), "its log is empty") + f" (the log is {log})"


def _answers(port: int) -> bool:
    """Say whether Placement and the other services at this port answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/network", timeout=ANSWERS_WITHIN):
            return True
    except OSError:
        return False
