"""A machine of its own with a real systemd as PID 1: namespaces over an overlay of this one's files.

Needs root. The network is this machine's unless another one is named. Only `shared` is written through to this
machine's own files.  Each machine has a cgroup of its own in every hierarchy, below which its systemd makes all of its
folders: two machines do not see each other's, and nothing of them is left.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from support.labs.small_lab import until

BOOTS_WITHIN = 180.0
SYSTEMD = Path("/lib/systemd/systemd")

_HIERARCHIES = """
set -e
work=$1 name=$2
mount -t tmpfs tmpfs "$work/cgroups"
mkdir "$work/cgroups/systemd"
# That there is one: a hierarchy cannot be made from within a namespace of cgroups.
mount -t cgroup -o none,name=systemd cgroup "$work/cgroups/systemd"
groups=()
while IFS=: read -r number kind path; do
    case $kind in
        "") how=(cgroup2) ;;
        name=*) how=(cgroup -o "none,$kind") ;;
        *cpuset*) continue ;;  # systemd makes no folders there
        *) how=(cgroup -o "$kind") ;;
    esac
    mkdir "$work/cgroups/$number"
    mount -t "${how[@]}" cgroup "$work/cgroups/$number"
    groups+=("$work/cgroups/$number$path/$name")
done < /proc/self/cgroup
"""
"""Mounts the hierarchies of cgroups for one program, in a mount namespace of its own: nothing is left of that."""

_OWN_CGROUPS = f"""{_HIERARCHIES}
shift 2
for group in "${{groups[@]}}"; do
    mkdir "$group"
    echo $$ > "$group/cgroup.procs"
done
exec "$@"
"""

_REMOVE_CGROUPS = f"""{_HIERARCHIES}
for group in "${{groups[@]}}"; do
    [ ! -d "$group" ] || find "$group" -depth -type d -exec rmdir {{}} +
done
"""
"""Fails as long as a process is in one of them."""

_BOOT = """
set -e
work=$1 shared=$2 root=$3
mount -t overlay overlay -o "lowerdir=$root,upperdir=$work/up,workdir=$work/work" "$work/root"
cd "$work/root"
mkdir -p "./$shared"
mount --bind "$shared" "./$shared"
mount --rbind /sys sys
mount -t proc proc proc
mount --rbind /dev dev
mount -t tmpfs tmpfs run
umount -R sys/fs/cgroup
mount -t tmpfs tmpfs sys/fs/cgroup
mkdir sys/fs/cgroup/systemd
mount -t cgroup -o none,name=systemd cgroup sys/fs/cgroup/systemd
mkdir -p .old
pivot_root . .old
umount -l /.old
exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin container=test \\
    /lib/systemd/systemd --system --unit=test.target --log-target=journal --show-status=no
"""

_TARGET = "[Unit]\nDescription=test\nRequires=basic.target\nAfter=basic.target\nAllowIsolate=yes\n"

_MASKED = (
    *(f"systemd-{name}.service" for name in (
        "udevd", "udev-trigger", "tmpfiles-setup", "tmpfiles-setup-dev", "remount-fs", "resolved", "timesyncd",
        "networkd", "modules-load", "sysctl", "binfmt", "random-seed",
    )),
    "dbus.service",
    "dbus.socket",
    "systemd-udevd-control.socket",
    "systemd-udevd-kernel.socket",
    *(f"{name}.{kind}" for name in ("libvirtd", "virtlogd", "virtlockd") for kind in ("service", "socket")),
    *(f"{name}.socket" for name in ("libvirtd-ro", "libvirtd-admin", "virtlogd-admin", "virtlockd-admin")),
)  # fmt: skip
"""What needs devices or a network of its own, would start another hypervisor, or need not be installed."""


class Machine:
    """The running machine."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    @property
    def files(self) -> Path:
        """Where its files are for this machine, those that only it has mounted too."""
        return Path(f"/proc/{self._pid}/root")

    def entering(self, *words: str) -> list[str]:
        """Return the words that run a command on the machine."""
        return ["nsenter", "-t", str(self._pid), "-a", *words]

    def run(self, *words: str, check: bool = True) -> str:
        """What a command on the machine prints."""
        done = subprocess.run(self.entering(*words), capture_output=True, text=True, check=False, timeout=120)
        assert not check or done.returncode == 0, f"{shlex.join(words)}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def start(self, *units: str) -> None:
        """Start units, each of which is ready when this returns."""
        self.run("systemctl", "start", *units, check=False)
        for unit in units:
            assert self.shown(unit, "ActiveState") == "active", self.said(unit)

    def shown(self, unit: str, name: str) -> str:
        """A property of a unit."""
        return self.run("systemctl", "show", unit, "--property", name, "--value")

    def said(self, unit: str) -> str:
        """What the unit's journal holds."""
        return self.run("journalctl", "--no-pager", "--unit", unit)


@contextlib.contextmanager
def machine(
    work: Path, shared: Path, files: Mapping[str, str], root: Path = Path("/"), network: str | None = None
) -> Iterator[Machine]:
    """A machine with these files, by their absolute paths; ``work`` is an empty directory of a disk's file system.

    ``root`` is the directory whose files it has besides.  ``network`` names the network namespace that it has, if not
    this machine's.
    """
    assert os.geteuid() == 0, "a machine of its own is made by root: run the tests as root"
    assert SYSTEMD.exists(), "the Debian package systemd is missing: apt-get install systemd"
    upper = work / "up"
    name = f"droveway-{secrets.token_hex(4)}"
    for folder in (upper, work / "work", work / "root", work / "cgroups"):
        folder.mkdir(parents=True)
    for path_there, text in {"/etc/systemd/system/test.target": _TARGET, **files}.items():
        path = upper / path_there.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        if text.startswith("#!"):
            path.chmod(0o755)
    for unit in _MASKED:
        (upper / "etc/systemd/system" / unit).symlink_to("/dev/null")
    log = work / "boot.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [
                *_apart(_OWN_CGROUPS, work, name),
                *(["nsenter", f"--net=/run/netns/{network}"] if network else []),
                "unshare", "--pid", "--fork", "--kill-child", "--mount", "--uts", "--ipc", "--cgroup",
                "--propagation", "private", "bash", "-c", _BOOT, "boot", str(work), str(shared), str(root),
            ],
            stdout=out,
            stderr=out,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    try:

        def first() -> int:
            assert process.poll() is None, log.read_text()
            return _first_of_its_own(process.pid)

        made = Machine(until(first, "the first process", BOOTS_WITHIN))

        def is_up() -> bool:
            assert process.poll() is None, log.read_text()
            return made.run("systemctl", "is-system-running", check=False) in ("running", "degraded")

        until(is_up, "systemd", BOOTS_WITHIN)
        yield made
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        # Until the last process of the machine is gone.
        until(lambda: _succeeds(_apart(_REMOVE_CGROUPS, work, name)), f"the end of all in {name}", BOOTS_WITHIN)
        shutil.rmtree(work, ignore_errors=True)


def _first_of_its_own(parent: int) -> int:
    """Find the child that is PID 1 of another namespace; 0: there is none yet, only what prepares it."""
    for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        # One that has ended meanwhile is not the one, and one that is ending shows its namespace to nobody.
        with contextlib.suppress(FileNotFoundError, PermissionError):
            if Path(f"/proc/{child}/ns/pid").readlink() != Path("/proc/self/ns/pid").readlink():
                return int(child)
    return 0


def _apart(program: str, work: Path, name: str) -> list[str]:
    """Give the words that run a program on the cgroups of this name in a mount namespace of its own."""
    return ["unshare", "--mount", "--propagation", "private", "bash", "-c", program, "cgroups", str(work), name]


def _succeeds(words: list[str]) -> bool:
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


def interpreter(words: str) -> str:
    """A program that runs this interpreter."""
    return f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {words} "$@"\n'
