"""The one-command demonstration with real libvirt daemons and QEMU guests, by an ordinary user.

Root's hosts, whose daemons run as another user, are those of the other tests with libvirt.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from droveway.lab import build

ROOT = Path(__file__).parents[2]
LAST = re.compile(r"demo: ok: (\d+) moves, (\d+) kills survived, audit clean")
ASKED = re.compile(r"^  (\d+) guests asked: each is the one that was marked, runs once", re.MULTILINE)
TOLD = re.compile(
    r"^  (\w+) on host\d: boot (\d+), \d vCPUs, \d+ MiB, \d+ GiB, mark (\w+), data ([0-9a-f]{8})$", re.MULTILINE
)

# No promise of speed, only a guard: on a busy machine a run takes several times its minute.
pytestmark = pytest.mark.timeout(900)


ORDINARY = "nobody"
# It may look into root's directories, where the checkout and its Python may lie, and write in none of them.
AS_ORDINARY_USER = ["setpriv", f"--reuid={ORDINARY}", f"--regid={pwd.getpwnam(ORDINARY).pw_gid}", "--clear-groups",
                    "--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]  # fmt: skip


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    """The ordinary user's own directory."""
    path = Path(tempfile.mkdtemp(prefix="dw"))
    if os.geteuid() == 0:
        shutil.chown(path, ORDINARY)
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def folder(home: Path) -> Iterator[Path]:
    """The ordinary user's directory for temporary files."""
    path = home / "tmp"
    path.mkdir()
    shutil.chown(path, home.owner())
    yield path
    for lab in path.glob("droveway-demo-*/lab"):
        # A run that failed keeps its lab, daemons and guests.
        build.destroy(lab)


@pytest.fixture(scope="module")
def printed(home: Path, folder: Path) -> str:
    """What a whole run printed."""
    if os.geteuid() == 0:
        # Into a checkout of root's an ordinary user can install nothing.
        install = ". tools/lib.sh && install_droveway lab && install_droveway libvirt"
        subprocess.run(["bash", "-c", install], cwd=ROOT, check=True)
    done = subprocess.run(
        [*(AS_ORDINARY_USER if os.geteuid() == 0 else []), ROOT / "tools" / "demo", "--hypervisor", "libvirt"],
        cwd=folder,
        env=os.environ | {"TMPDIR": str(folder), "HOME": str(home)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-20000:]}\n{done.stderr}"
    return done.stdout


def test_it_ends_with_its_moves_and_kills(printed: str) -> None:
    last = LAST.fullmatch(printed.splitlines()[-1])
    assert last is not None, printed[-500:]
    assert int(last[1]) >= 20
    assert int(last[2]) >= 15


def test_guests_are_asked_after_every_round(printed: str) -> None:
    asked = [int(number) for number in ASKED.findall(printed)]
    # All but the heading of the lab itself and of what became of it.
    assert len(asked) == len(re.findall("^== ", printed, re.MULTILINE)) - 1
    assert asked[-1] == 10
    # Two servers are stopped, and one is shelved for a round.
    assert (set(asked[:-1]), asked[:-1].count(7)) == ({7, 8}, 1)


def test_a_guest_keeps_its_data_through_all_its_moves(printed: str) -> None:
    told = TOLD.findall(printed)
    assert len({name for name, _boots, _mark, _data in told}) == 10
    for name in {name for name, *_ in told}:
        assert {(mark, data) for other, _boots, mark, data in told if other == name} == {
            (name, next(data for other, _boots, _mark, data in told if other == name))
        }
    assert max(int(boots) for _name, boots, *_ in told) >= 3


def test_nothing_is_left_behind(printed: str, folder: Path) -> None:
    assert printed
    assert list(folder.iterdir()) == []


def test_missing_packages_are_named_before_anything_is_made(folder: Path) -> None:
    """With a PATH that has the shell's own programs and no QEMU."""
    programs = folder / "bin"
    programs.mkdir()
    for name in ("bash", "cat", "dirname", "flock", "python3", "sha256sum"):
        (programs / name).symlink_to(str(shutil.which(name)))
    refused = subprocess.run(
        [programs / "bash", ROOT / "tools" / "demo", "--hypervisor", "libvirt"],
        env={"PATH": str(programs), "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    shutil.rmtree(programs)
    assert refused.returncode != 0
    assert "apt-get install qemu-system-x86 qemu-utils binutils\n" in refused.stderr
    assert list(folder.iterdir()) == []
