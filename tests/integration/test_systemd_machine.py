"""Two machines with a systemd each, side by side: neither has anything of the other's, and neither leaves anything."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.servers.systemd_machine import Machine, machine

UNIT = "idle.service"
FILES = {f"/etc/systemd/system/{UNIT}": "[Service]\nExecStart=/bin/sleep infinity\n"}

HIERARCHY = 'mount -t "$1" -o "$2" cgroup "$3" && cd "$3" && find . -type d'


@pytest.fixture(name="folders")
def fixture_folders() -> Iterator[list[Path]]:
    """An empty folder for each machine, on a disk: an overlay needs one."""
    with contextlib.ExitStack() as stack:
        yield [
            Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="droveway-two-", dir="/var/lib")))
            for _ in range(2)
        ]


def cgroups(process: str) -> dict[str, str]:
    """Hierarchy of cgroups → where the process is in it, as this machine names that."""
    lines = Path(f"/proc/{process}/cgroup").read_text().splitlines()
    return {kind: path for _number, kind, path in (line.split(":", 2) for line in lines)}


def folders_of(kind: str, at: Path) -> list[str]:
    """Every folder of a hierarchy."""
    words = ["cgroup2", "rw"] if not kind else ["cgroup", f"none,{kind}" if kind.startswith("name=") else kind]
    apart = ["unshare", "--mount", "--propagation", "private", "sh", "-c", HIERARCHY, "hierarchy"]
    return subprocess.run([*apart, *words, str(at)], capture_output=True, text=True, check=True).stdout.splitlines()


def tops(made: Machine) -> dict[str, str]:
    """Hierarchy → the folder of this machine's own in it, where the machine's systemd has made any."""
    here = cgroups("self")
    found = {kind: path.removesuffix("/init.scope") for kind, path in cgroups(str(made._pid)).items()}
    return {kind: path for kind, path in found.items() if path != here[kind] or kind == "name=systemd"}


def test_each_has_cgroups_of_its_own_and_leaves_none(folders: list[Path], tmp_path: Path) -> None:
    here = cgroups("self")
    with contextlib.ExitStack() as stack:
        made = []
        for folder in folders:
            (folder / "shared").mkdir()
            made.append(stack.enter_context(machine(folder / "machine", folder / "shared", FILES)))
        first, second = made
        for each in made:
            each.start(UNIT)
        own = [tops(each) for each in made]
        names = [{path.removeprefix(here[kind]).strip("/") for kind, path in each.items()} for each in own]
        assert [len(each) for each in names] == [1, 1]
        assert names[0] != names[1]
        assert "" not in names[0] | names[1]
        assert "name=systemd" in own[0]
        for kind, path in own[1].items():
            there = folders_of(kind, tmp_path)
            assert [each for each in there if each.startswith(f".{path}")]
        first.run("systemctl", "stop", UNIT)
        assert first.shown(UNIT, "ActiveState") == "inactive"
        assert second.shown(UNIT, "ActiveState") == "active"
    for kind in here:
        left = [each for each in folders_of(kind, tmp_path) if (names[0] | names[1]) & set(each.split("/"))]
        assert (kind, left) == (kind, [])
