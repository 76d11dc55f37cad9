"""How far a copy is, as its worker tells: what an earlier run left is counted, and named apart."""

from __future__ import annotations

from pathlib import Path

from support.rigs.worker_rig import Cloud

from droveway.wire import commands
from droveway.workers.context import Context
from droveway.workers.transfer.copying import Tally


def test_what_was_kept_is_told_apart_and_the_end_is_always_told(tmp_path: Path) -> None:
    told: list[commands.Progress] = []
    cloud = Cloud(tmp_path)
    try:
        tally = Tally(Context(cloud.hosts["alpha"], cloud.command("alpha", "describe_guest"), report=told.append))
        tally.expect(100)
        tally.add(30, kept=True)
        tally.add(20)
        tally.add(50)
    finally:
        cloud.close()
    assert [(each.done, each.total, each.kept) for each in told] == [(30, 100, 30), (100, 100, 30)]
    assert told[0].seconds <= told[1].seconds < 10
