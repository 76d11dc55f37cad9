"""What a worker that runs as root makes in Nova's directory belongs to Nova's user."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from support.rigs.worker_rig import Killed

from droveway.workers.directories import Directories

ROOT, NOVA = 0, 162


class Owners:
    """Plays that this process is root and that Nova owns the directory ``top``; nobody has to be root for it."""

    def __init__(self, patched: pytest.MonkeyPatch, top: Path) -> None:
        self.of = {top.stat().st_ino: NOVA}
        self._status = os.fstat
        patched.setattr(os, "geteuid", lambda: ROOT)
        patched.setattr(os, "fstat", self._told)
        patched.setattr(os, "fchown", self._give)

    def _told(self, file: int) -> os.stat_result:
        found = list(self._status(file))
        found[4] = self.of.get(found[1], ROOT)
        return os.stat_result(found)

    def _give(self, file: int, user: int, _group: int) -> None:
        self.of[self._status(file).st_ino] = user


def test_a_directory_made_by_a_worker_that_was_killed_still_becomes_novas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owners = Owners(monkeypatch, tmp_path)
    make = os.mkdir

    def killed(*args: Any, **named: Any) -> None:
        make(*args, **named)
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(os, "mkdir", killed)
        with pytest.raises(Killed):
            Directories(tmp_path).create("part")
    Directories(tmp_path).create("part")
    assert owners.of.get((tmp_path / "part").stat().st_ino, ROOT) == NOVA


def test_a_directory_that_another_user_made_keeps_its_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owners = Owners(monkeypatch, tmp_path)
    base = tmp_path / "_base"
    base.mkdir()
    owners.of[base.stat().st_ino] = NOVA + 1
    Directories(tmp_path).create("_base")
    assert owners.of[base.stat().st_ino] == NOVA + 1
