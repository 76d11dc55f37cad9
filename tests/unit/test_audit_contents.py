"""What disks hold that are set aside or kept, and what lies in ZooKeeper for workers, as an audit compares them."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.rows.audit_books import ENDED, MOVE, SERVER, books, directory, store, with_row

from droveway.audit import Snapshot, judge
from droveway.audit.records import CommandView, DebtRow, DiskDigest, FlowRow
from droveway.persistence.journal.states import State
from droveway.workers import digests
from droveway.workers.digests import Digests
from droveway.workers.transfer import extents

GOOD, BAD = "a" * 64, "b" * 64


def disk(suffix: str = "_resize", digest: str = GOOD, host: str = "source") -> DiskDigest:
    return DiskDigest(host=host, name=SERVER + suffix, disk="disk", digest=digest, read=5, size=9)


def contents(found: DiskDigest, marked: str = MOVE, **changes: Any) -> list[tuple[str, str, str]]:
    """Subject, host and move of what is found of a disk that was set aside or is kept on the source."""
    entries = (directory(), directory(found.name.removeprefix(SERVER), move=marked))
    fields = {"checksums": {(MOVE, "disk"): GOOD, (ENDED, "disk"): GOOD}, "digests": (found,)} | changes
    snapshot = books(stores=(store("source", *entries), store("dest"), store("third")), **fields)
    found_there = judge(snapshot).findings
    return [(each.subject, each.host, each.move) for each in found_there if each.subject.endswith("/disk")]


def test_other_bytes_in_what_was_set_aside_are_found() -> None:
    assert contents(disk()) == []
    wrong = (f"instances/{SERVER}_resize/disk", "source", MOVE)
    assert contents(disk(digest=BAD)) == [wrong]
    owed = DebtRow(id=1, host="source", move=MOVE, action="set_aside")
    assert contents(disk(digest=BAD), debts=(owed,)) == [wrong]


def test_what_another_move_set_aside_or_of_which_nothing_is_known_is_not_compared() -> None:
    assert contents(disk(digest=BAD), marked=ENDED) == []
    assert contents(disk(digest=BAD), checksums={}) == []
    assert contents(disk(suffix="_resize", digest=BAD, host="third")) == []


def test_other_bytes_in_what_is_kept_are_found() -> None:
    debt = DebtRow(id=1, host="source", move=ENDED, action="purge_kept", kept=True)
    kept = f"_keep-{ENDED}"
    assert contents(disk(suffix=kept), marked=ENDED, debts=(debt,)) == []
    (found,) = contents(disk(suffix=kept, digest=BAD), marked=ENDED, debts=(debt,))
    assert found == (f"instances/{SERVER}{kept}/disk", "source", ENDED)


def test_a_disk_that_was_not_read_to_its_end_is_noted() -> None:
    entries = (directory(), directory("_resize", move=MOVE))
    stores = (store("source", *entries), store("dest"), store("third"))
    report = judge(books(stores=stores, checksums={(MOVE, "disk"): GOOD}, digests=(disk(digest=""),)))
    assert report.clean
    (noted,) = report.noted
    assert "5 of 9 bytes were read" in noted.detail


def test_a_shared_disk_is_found_once() -> None:
    shared = replace(store("source", directory(), directory("_resize", move=MOVE)), hosts=("dest", "source"))
    snapshot = books(
        stores=(shared, store("third")),
        checksums={(MOVE, "disk"): GOOD},
        digests=(disk(digest=BAD), disk(digest=BAD, host="dest")),
    )
    assert [each.kind.value for each in judge(snapshot).findings] == ["disk"]


def made(tmp_path: Path) -> Path:
    """An instances directory with a sparse disk of 20 MiB that was set aside, and others that are not looked at."""
    for name in (f"{SERVER}_resize", SERVER, f"{SERVER}.part-{MOVE}"):
        (tmp_path / name).mkdir()
        for file in ("disk", "disk.swap", "droveway.json"):
            (tmp_path / name / file).write_bytes(b"x")
    path = tmp_path / f"{SERVER}_resize" / "disk"
    with path.open("wb") as file:
        file.truncate(20 << 20)
        for offset in (0, 6 << 20, 12 << 20):
            file.seek(offset)
            file.write(os.urandom(5 << 20 if offset else 4096))
    return path


def by_the_copy(path: Path) -> str:
    """The digest that `droveway.workers.transfer.proving` makes."""
    file = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(file).st_size
        whole = hashlib.sha256(f"{size}".encode())
        for offset, length in extents.chunks(extents.data_extents(file, size)):
            checksum = extents.checksum(os.pread(file, length, offset))
            whole.update(f":{offset}:{length}:{checksum}".encode())
    finally:
        os.close(file)
    return whole.hexdigest()


def test_the_audit_s_own_digest_is_the_copy_s(tmp_path: Path) -> None:
    path = made(tmp_path)
    (found,) = Digests().of(tmp_path)
    assert (found.name, found.disk, found.digest) == (f"{SERVER}_resize", "disk", by_the_copy(path))


def test_a_disk_is_read_on_where_the_answer_before_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, reader = made(tmp_path), Digests()
    reads: list[int] = []
    read = os.pread

    def counted(file: int, length: int, offset: int) -> bytes:
        reads.append(offset)
        return read(file, length, offset)

    monkeypatch.setattr(digests.os, "pread", counted)
    answers = []
    while not answers or not answers[-1].digest:
        before = len(reads)
        # One piece an answer: the clock passes its end with the first.
        clock = iter([0.0] * (3 if not answers else 2))
        monkeypatch.setattr(digests.time, "monotonic", lambda clock=clock: next(clock, 99.0))
        answers += list(reader.of(tmp_path, 1.0))
        assert len(reads) <= before + 2
    monkeypatch.undo()
    assert len(answers) > 2
    assert answers[-1].digest == by_the_copy(path)
    assert reads == sorted(set(reads))
    assert [each.read for each in answers] == sorted(each.read for each in answers)


def test_a_disk_that_was_changed_is_read_anew_though_its_mtime_was_set_back(tmp_path: Path) -> None:
    path, reader = made(tmp_path), Digests()
    (before,) = reader.of(tmp_path)
    status = path.stat()
    with path.open("r+b") as file:
        file.write(b"other")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    (after,) = reader.of(tmp_path)
    assert after.digest not in (before.digest, "")


def nodes(snapshot: Snapshot, *keys: str, host: str = "source") -> list[str]:
    """The names of those nodes that are found."""
    standing = tuple(CommandView(host=host, folder="commands", key=key) for key in keys)
    return [
        each.subject.removeprefix("commands/")
        for each in judge(replace(snapshot, commands=standing)).findings
        if each.kind == "command"
    ]


def test_a_command_belongs_to_a_flow_under_way_a_debt_or_a_question() -> None:
    running, unknown = "flow.stop_guest.execute.1", "other.stop_guest.execute.1"
    assert nodes(books(), running, unknown) == [unknown]
    over = books(flows=(FlowRow(uuid="flow", move=MOVE, kind="resize", ended=True),))
    paid = "flow.copy_disks.revert.1.debt-9"
    assert nodes(over, running, paid) == [paid, running]
    assert nodes(replace(over, claimed=frozenset({MOVE})), running) == []
    owing = replace(over, debts=(DebtRow(id=1, host="source", move=MOVE, action="copy_disks"),))
    assert nodes(owing, running, paid) == [running]
    assert nodes(owing, paid, host="dest") == [paid]
    asked = f"health-{MOVE}.check_health.execute.1"
    assert nodes(books(), asked) == [asked]
    assert nodes(with_row(books(State.VERIFYING, flows=()), task_state=None), asked) == []
