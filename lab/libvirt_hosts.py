"""Runs several libvirt hosts on one machine, each with an unprivileged libvirtd in session mode.

Root cannot run libvirt's session mode. So the daemons of root's labs run as the user ``nobody``, and those of any other
user run as that user. All that a daemon keeps is in ``root/libvirt``, reached through a link in a directory with a
short name, because the path of a unix socket has at most 107 bytes.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import pwd
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from droveway.errors import Refused
from droveway.workers.hypervisors.libvirt.connection import Connection
from droveway.workers.hypervisors.sandbox.guest import born

USER = "nobody"
QEMU_CONF = 'stdio_handler = "file"\nseccomp_sandbox = 0\nlock_manager = "nop"\n'
DAEMON_CONF = "log_level = 3\nmin_workers = 2\nmax_workers = 8\n"
# The file with QEMU's capabilities, below a daemon's directory.
CAPABILITIES = "cache/libvirt/qemu/cache/capabilities"
START_SECONDS = 20.0
STOP_SECONDS = 15.0
POLL_SECONDS = 0.02
# For each Debian package a program that only this package has.
PACKAGES = {
    "libvirtd": "libvirt-daemon",
    "qemu-system-x86_64": "qemu-system-x86",
    "qemu-img": "qemu-utils",
    "as": "binutils",
}
# libvirt-python has no wheel. To compile it pip needs these programs, and headers below /usr/include.
BINDING_PROGRAMS = {"gcc": "gcc", "pkg-config": "pkg-config"}
BINDING_HEADERS = {"libvirt/libvirt.h": "libvirt-dev", "python3.*/Python.h": "python3-dev"}
INCLUDE = Path("/usr/include")


def missing_packages() -> list[str]:
    """Return the Debian packages that libvirt hosts need and this machine lacks."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
    programs, headers = PACKAGES, {}
    if not _has_binding():
        programs, headers = PACKAGES | BINDING_PROGRAMS, BINDING_HEADERS
    missing = [package for program, package in programs.items() if shutil.which(program, path=path) is None]
    return missing + [package for header, package in headers.items() if not any(INCLUDE.glob(header))]


def require_debian_packages() -> None:
    """Raise Refused with the command that installs every missing Debian package."""
    if missing := missing_packages():
        raise Refused(f"libvirt hosts need Debian packages that are missing; run: apt-get install {' '.join(missing)}")


def require_packages() -> None:
    """Raise Refused when Debian packages are missing, or libvirt-python, which pip compiles with their help."""
    require_debian_packages()
    if not _has_binding():
        raise Refused("libvirt hosts need the Python package libvirt-python; run: pip install 'droveway[libvirt]'")


def _has_binding() -> bool:
    return importlib.util.find_spec("libvirt") is not None


def start_hosts(hosts: Sequence[LibvirtHost]) -> None:
    """Start all hosts; the first one asks QEMU for its capabilities, and the others copy the answer."""
    for host in hosts:
        host.start()
        host.learn_capabilities()


class LibvirtHost:
    """One host's libvirtd.  ``root`` is the host's directory, ``short_dir`` one that many hosts share."""

    def __init__(self, name: str, root: Path, short_dir: Path) -> None:
        self.name = name
        self.root = root.absolute()
        self.state = self.root / "libvirt"
        self.dir = short_dir.absolute() / name
        self.consoles = self.dir / "con"
        self.uri = f"qemu+unix:///session?socket={self.dir}/run/libvirt/libvirt-sock"
        self._reapers = self.state / "reapers"

    def start(self) -> None:
        """Start the daemon and wait until it answers; nothing is done when it answers already.

        Raises `droveway.errors.Refused` when packages are missing or its user cannot reach the directory.
        """
        require_packages()
        self.state.mkdir(parents=True, exist_ok=True)
        # Without the lock two commands could both find no daemon and start one each. The second daemon would end, since
        # the first one holds the pid file.
        with (self.state / "lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not self._answers():
                self._launch(self._prepare())

    def _launch(self, owner: pwd.struct_passwd | None) -> None:
        programs = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        folders = {"RUNTIME_DIR": "run", "CONFIG_HOME": "config", "CACHE_HOME": "cache", "DATA_HOME": "data"}
        environment = {f"XDG_{name}": str(self.dir / folder) for name, folder in folders.items()}
        with (self.state / "log").open("ab") as log:
            reaper = subprocess.Popen(
                [
                    *(sys.executable, "-I", "-S", str(Path(__file__).with_name("subreaper.py").resolve())),
                    *("-" if owner is None else f"{owner.pw_uid}:{owner.pw_gid}", "libvirtd", "-p", self.dir / "pid"),
                ],
                env={"PATH": programs, "HOME": str(self.dir), **environment},
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        with self._reapers.open("a", encoding="ascii") as file:
            file.write(f"{reaper.pid} {born(reaper.pid)}\n")
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            if reaper.poll() is not None or time.monotonic() > deadline:
                last = (self.state / "log").read_text(errors="replace")[-500:]
                # The guests that an earlier daemon started go on.
                _end([reaper.pid, *_children(reaper.pid)])
                raise Refused(f"libvirtd of {self.name} does not come up; the end of {self.state / 'log'} is: {last}")
            time.sleep(POLL_SECONDS)

    def learn_capabilities(self) -> None:
        """Let the daemon ask QEMU what it can do: about a second, once for all hosts that start later."""
        connection = Connection(self.uri)
        try:
            connection.get().getDomainCapabilities(None, "x86_64", "pc", "qemu")
        finally:
            connection.close()

    def stop(self) -> int:
        """Stop the daemon and its guests, wait until all have ended, and return how many guests ran."""
        reapers, guests = self._recorded_reapers(), list(self._guests())
        _end([*reapers, *guests, *(child for reaper in reapers for child in _children(reaper))])
        self._reapers.unlink(missing_ok=True)
        if self.dir.is_symlink():
            self.dir.unlink()
        return len(guests)

    def _answers(self) -> bool:
        if not (self.dir / "run/libvirt/libvirt-sock").exists():
            return False
        connection = Connection(self.uri)
        try:
            return connection.answers()
        finally:
            connection.close()

    def _prepare(self) -> pwd.struct_passwd | None:
        """Make the directories, and return the daemon's user; None when it is this process's user."""
        for folder in ("run", "config/libvirt", "cache", "data", "con"):
            (self.state / folder).mkdir(parents=True, exist_ok=True)
        (self.state / "config/libvirt/qemu.conf").write_text(QEMU_CONF, encoding="ascii")
        (self.state / "config/libvirt/libvirtd.conf").write_text(DAEMON_CONF, encoding="ascii")
        (self.state / "run").chmod(0o700)
        self.dir.parent.mkdir(parents=True, exist_ok=True)
        if not self.dir.is_symlink():
            self.dir.symlink_to(self.state)
        self._take_over_capabilities()
        if os.geteuid() != 0:
            return None
        owner = pwd.getpwnam(USER)
        for place in (self.state, self.dir):
            for parent in place.parent.resolve().joinpath("x").parents:
                if not parent.stat().st_mode & 0o001:
                    raise Refused(
                        f"libvirt hosts of root run as the user {USER}, who cannot enter {parent}: "
                        f"run chmod o+x {parent}, or choose another directory"
                    )
        for path in (self.state, *self.state.rglob("*")):
            os.chown(path, owner.pw_uid, owner.pw_gid, follow_symlinks=False)
        return owner

    def _take_over_capabilities(self) -> None:
        """Copy the cached capabilities of QEMU from another host's daemon, unless this host's daemon has its own."""
        if not (self.state / CAPABILITIES).exists():
            for other in list(self.dir.parent.glob(f"*/{CAPABILITIES}"))[:1]:
                shutil.copytree(other, self.state / CAPABILITIES)

    def _recorded_reapers(self) -> list[int]:
        """Return the subreapers of this host that still run."""
        try:
            lines = self._reapers.read_text(encoding="ascii").splitlines()
        except FileNotFoundError:
            return []
        found = [(int(pid), birth) for pid, birth in (line.split() for line in lines)]
        return [pid for pid, birth in found if str(born(pid)) == birth]

    def _guests(self) -> Iterator[int]:
        """Yield the QEMU processes of this host, whatever their parent is."""
        for file in (self.state / "run/libvirt/qemu/run").glob("*.pid"):
            if file.name == "driver.pid":  # a process of the daemon itself
                continue
            pid = int(file.read_text(encoding="ascii"))
            try:
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
            except FileNotFoundError:
                continue
            if str(self.dir).encode() in command:
                yield pid


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]
    except FileNotFoundError:
        return []


def _end(processes: Sequence[int]) -> None:
    """Ask the processes to end, then kill them, and wait until they have ended."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + STOP_SECONDS
        for pid in processes:
            _signal_and_wait(pid, number, None)
        if all(_signal_and_wait(pid, None, deadline) for pid in processes):
            break


def _signal_and_wait(pid: int, number: signal.Signals | None, deadline: float | None) -> bool:
    """Send a signal, if any, and wait until ``deadline`` (monotonic), if any; return whether the process has ended."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        if number is not None:
            signal.pidfd_send_signal(process, number)
        return bool(select.select([process], [], [], max(0.0, (deadline or 0) - time.monotonic()))[0])
    except ProcessLookupError:
        return True
    finally:
        os.close(process)
