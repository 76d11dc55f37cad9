"""A worker that could not start leaves nothing open."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from support.rigs.worker_rig import cloud

from droveway.errors import Refused
from droveway.workers.directories import Directories
from droveway.workers.transfer.endpoints import UnixEndpoint


def held(folder: Path) -> list[str]:
    """The files below the folder that this process has open."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the listing's own file is closed by now
            target = entry.readlink()
            if target.is_relative_to(folder):
                found.append(target.name)
    return sorted(found)


@pytest.mark.parametrize(("part", "call"), [(Directories, "ensure"), (UnixEndpoint, "listen")])
def test_a_worker_that_could_not_start_has_closed_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: type, call: str
) -> None:
    with cloud(tmp_path) as site:
        worker, before = site.worker("alpha"), held(tmp_path)

        def refuse(*_: object) -> None:
            assert len(held(tmp_path)) > len(before)
            raise Refused("no")

        with monkeypatch.context() as patched:
            patched.setattr(part, call, refuse)
            with pytest.raises(Refused, match="no"):
                worker.start()
        assert held(tmp_path) == before
        worker.start()
        worker.stop()
        assert held(tmp_path) == before
        worker.coordination.close()
