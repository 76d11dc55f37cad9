"""Labs that cannot be made or used: malformed or contradictory cloud files, other versions, damage, no write access."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import PIPE

import pytest
from support.labs import snapshot
from support.labs.operations import Stage, changes, photograph, stage
from support.labs.small_lab import in_child

CLOUD = """
cells: {cell1: {hosts: {host1: {}, host2: {}}}}
flavors: {small: {vcpus: 1, memory_mb: 256, root_gb: 1}}
images: {base: {size_mb: 1}}
servers: {web: {flavor: small, host: host1, image: base, ports: [{}]}}
"""
NOBODY = 65534


@pytest.fixture(scope="module", name="kept")
def fixture_kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Stage, snapshot.Snapshot]]:
    folder = tmp_path_factory.mktemp("damaged")
    with stage(folder / "lab", CLOUD) as made:
        made.cli("server", "migrate", "web")
        made.lab.close()
        kept = snapshot.take(folder / "lab", folder / "kept")
        yield made, kept
        shutil.rmtree(made.root)
        kept.restore()


@pytest.fixture(name="lab")
def fixture_lab(kept: tuple[Stage, snapshot.Snapshot]) -> Stage:
    """A lab with a move at rest, whole again."""
    made, rest = kept
    made.lab.close()
    shutil.rmtree(made.root)
    shutil.copytree(rest.kept, made.root, symlinks=True)
    return made


def garbage(path: Path) -> None:
    path.write_bytes(b"not what it was\n" * 400)


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@contextlib.contextmanager
def owner(root: Path) -> Iterator[None]:
    """Another process has every database open."""
    # A connection of this process would pass to its forked children, who could begin to write beside it.
    code = (
        "import sqlite3, sys; opened = [sqlite3.connect(path) for path in sys.argv[1:]]\n"
        "for each in opened: each.execute('SELECT count(*) FROM sqlite_schema').fetchall()\n"
        "print(flush=True); sys.stdin.read()"
    )
    paths = sorted(map(str, root.rglob("*.sqlite")))
    with subprocess.Popen([sys.executable, "-c", code, *paths], stdin=PIPE, stdout=PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        yield


@contextlib.contextmanager
def unwritable(root: Path) -> Iterator[None]:
    """Everybody may read the directory and nobody may write it."""
    for path in [root, *root.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    for parent in root.parents[:4]:
        parent.chmod(parent.stat().st_mode | 0o055)
    try:
        yield
    finally:
        for path in [root, *root.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)


COMMANDS = [
    ("server", "list"),
    ("server", "confirm", "web"),
    ("move", "list"),
    ("move", "resume"),
    ("server", "show", "web"),
]


@pytest.mark.parametrize("version", [0, 2, 99, "new", None])
def test_a_lab_of_another_version_is_left_alone(lab: Stage, version: object) -> None:
    identity = json.loads((lab.root / "lab.json").read_text())
    (lab.root / "lab.json").write_text(json.dumps(identity | {"version": version}))
    before = photograph(lab.root)
    for words in COMMANDS:
        said = lab.refused(*words)
        assert f"the lab {lab.root} is of version {version}" in said
        assert "make a new lab" in said
    assert changes(before, photograph(lab.root)) == []


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"version": 1}', '{"version": 1, "hosts": 3}'])
def test_a_corrupt_lab_file_is_named(lab: Stage, text: str) -> None:
    (lab.root / "lab.json").write_text(text)
    before = photograph(lab.root)
    for words in COMMANDS:
        assert str(lab.root) in lab.refused(*words)
    assert changes(before, photograph(lab.root)) == []


@pytest.mark.parametrize("damage", [garbage, truncated, Path.unlink], ids=["garbage", "truncated", "missing"])
@pytest.mark.parametrize("name", ["journal.sqlite", "api.sqlite", "cells/cell1.sqlite"])
def test_a_corrupt_database_is_named(lab: Stage, name: str, damage: Callable[[Path], None]) -> None:
    """One sentence that names the file; and no file is made in the place of one that is missing."""
    damage(lab.root / name)
    present = sorted(path.name for path in lab.root.rglob("*.sqlite"))
    said = lab.refused("server", "confirm", "web")
    assert Path(name).name in said
    assert sorted(path.name for path in lab.root.rglob("*.sqlite")) == present


@pytest.mark.parametrize("name", ["placement.sqlite", "services.sqlite"])
def test_a_corrupt_service_is_named(lab: Stage, name: str) -> None:
    garbage(lab.root / name)
    assert name in lab.refused("audit")


def test_a_corrupt_configuration_is_named(lab: Stage) -> None:
    (lab.root / "droveway.conf").write_text("[scheduler]\nmax_attempts = many\n")
    assert "droveway.conf" in lab.refused("server", "confirm", "web")


@pytest.mark.parametrize("held", [False, True], ids=["at rest", "in use"])
@pytest.mark.parametrize(
    "words", [("server", "confirm", "web"), ("move", "resume", "{move}"), ("host", "disable", "host1")]
)
def test_a_lab_that_cannot_be_written_is_not_touched(
    lab: Stage, kept: tuple[Stage, snapshot.Snapshot], words: tuple[str, ...], held: bool
) -> None:
    """By somebody to whom the directory does not belong; it can be read while its owner has it open."""
    with contextlib.closing(sqlite3.connect(kept[1].kept / lab.lab.layout.journal.name)) as journal:
        [(move,)] = journal.execute("SELECT id FROM moves")
    with owner(lab.root) if held else contextlib.nullcontext(), unwritable(lab.root):
        before = photograph(lab.root)

        def as_nobody() -> None:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            assert str(lab.root) in lab.refused(*(word.format(move=move) for word in words))
            if held:
                assert "web" in lab.cli("server", "list")

        in_child(as_nobody)
        assert changes(before, photograph(lab.root)) == []


BAD_CLOUDS = {
    "no YAML": ("cells: [", "no valid YAML"),
    "a list": ("[]", "mapping"),
    "empty": ("", "cells"),
    "an unknown key": (CLOUD.replace("images:", "image:"), "image"),
    "an unknown key near a known one": (CLOUD.replace("vcpus: 1", "vcpu: 1"), "vcpus"),
    "a key twice": (CLOUD + "flavors: {}\n", "twice"),
    "an unknown flavor": (CLOUD.replace("flavor: small", "flavor: tall"), "tall"),
    "an unknown host": (CLOUD.replace("host: host1, image", "host: host9, image"), "host9"),
    "an unknown image": (CLOUD.replace("image: base", "image: basis"), "basis"),
    "a host in two cells": (CLOUD.replace("}}}\nflavors", "}}, cell2: {hosts: {host1: {}}}}\nflavors"), "host1"),
    "a negative number": (CLOUD.replace("vcpus: 1", "vcpus: -1"), "vcpus"),
    "a number too large": (CLOUD.replace("vcpus: 1", "vcpus: 99999999999"), "vcpus"),
    "a server that does not fit": (CLOUD.replace("host1: {}", "host1: {memory_mb: 128}"), "host1"),
    "no hosts": (CLOUD.replace("host1: {}, host2: {}", ""), "hosts"),
    "a name that is a path": (CLOUD.replace("web:", "../web:"), "../web"),
    "neither image nor boot volume": (CLOUD.replace(", image: base", ""), "web"),
    "a hypervisor that is none": ("hypervisor: xen\n" + CLOUD, "xen"),
}


@pytest.mark.parametrize(("text", "named"), BAD_CLOUDS.values(), ids=BAD_CLOUDS)
def test_a_bad_cloud_file_makes_no_lab(lab: Stage, tmp_path: Path, text: str, named: str) -> None:
    """One sentence that names the file and the thing; nothing is left where the lab was to be."""
    (tmp_path / "cloud.yaml").write_text(text)
    said = lab.refused("lab", "create", str(tmp_path / "new"), "--cloud", str(tmp_path / "cloud.yaml"))
    assert named in said
    assert str(tmp_path / "cloud.yaml") in said
    assert not (tmp_path / "new").exists()


def test_a_lab_is_not_made_over_anything(lab: Stage, tmp_path: Path) -> None:
    """A lab, a full directory, a file and a place where nothing can be made; each is as it was."""
    before = photograph(lab.root)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "kept").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for path in (lab.root, tmp_path / "full", tmp_path / "file", Path("/proc/lab")):
        assert str(path) in lab.refused("lab", "create", str(path))
    assert (tmp_path / "full" / "kept").read_text() == (tmp_path / "file").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "full"]
    assert changes(before, photograph(lab.root)) == []
    for words in (("lab", "destroy", str(tmp_path / "full")), ("lab", "destroy", str(tmp_path / "none"))):
        assert "is no lab" in lab.refused(*words)
    assert (tmp_path / "full" / "kept").exists()
