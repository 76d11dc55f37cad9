"""Where the data of a sparse file lies, what its medium holds, and how it is read and written past the page cache."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rigs.worker_rig import MIB, make_disk

from droveway.workers.transfer import extents
from droveway.workers.transfer.extents import BLOCK, CHUNK, Direct, memory


@pytest.fixture(name="file")
def fixture_file(tmp_path: Path) -> Iterator[int]:
    file = os.open(tmp_path / "disk", os.O_RDWR | os.O_CREAT)
    yield file
    os.close(file)


def refuse_direct(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no file be opened for O_DIRECT, as on a file system in memory."""
    control = fcntl.fcntl

    def refuse(file: int, command: int, argument: int = 0) -> int:
        if command == fcntl.F_SETFL and argument & os.O_DIRECT:
            raise OSError(errno.EINVAL, "no O_DIRECT here")
        return control(file, command, argument)

    monkeypatch.setattr(fcntl, "fcntl", refuse)


def can_be_direct(file: int) -> bool:
    """Whether the file system of the tests has O_DIRECT; one in memory has not."""
    flags = fcntl.fcntl(file, fcntl.F_GETFL)
    try:
        fcntl.fcntl(file, fcntl.F_SETFL, flags | os.O_DIRECT)
    except OSError:
        return False
    fcntl.fcntl(file, fcntl.F_SETFL, flags)
    return True


def in_memory(data: bytes) -> memoryview:
    view = memory()[: len(data)]
    view[:] = data
    return view


def is_direct(file: int) -> bool:
    return bool(fcntl.fcntl(file, fcntl.F_GETFL) & os.O_DIRECT)


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize(
    "pieces",
    [
        [(0, CHUNK), (CHUNK, BLOCK)],
        [(0, BLOCK), (BLOCK, 123)],
        [(512, 1024), (BLOCK, BLOCK), (3 * BLOCK, 1)],
    ],
    ids=["whole blocks", "an odd end", "odd borders"],
)
def test_what_is_written_is_read_back(
    tmp_path: Path, file: int, monkeypatch: pytest.MonkeyPatch, pieces: list[tuple[int, int]], direct: bool
) -> None:
    """R0-05: to the byte, whatever the file system can, and nothing beside it."""
    if not direct:
        refuse_direct(monkeypatch)
    able, written = can_be_direct(file), Direct(file)
    assert not able or direct
    wanted = bytearray(max(offset + length for offset, length in pieces))
    for offset, length in pieces:
        data = os.urandom(length)
        wanted[offset : offset + length] = data
        written.write(in_memory(data), offset)
        assert is_direct(file) == able
        assert bytes(Direct(file).read(offset, length, memory())) == data
    assert (tmp_path / "disk").read_bytes() == wanted
    last = (len(wanted) - 1) // BLOCK * BLOCK
    assert bytes(Direct(file).read(last, CHUNK, memory())) == wanted[last:]
    assert bytes(Direct(file).read(last + BLOCK, BLOCK, memory())) == b""


def test_a_file_system_that_takes_back_its_word_is_served_through_the_cache(
    file: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some let a file be opened for O_DIRECT and refuse what is then asked of it."""
    written, write = Direct(file), os.pwrite

    def refuse(number: int, data: bytes, offset: int) -> int:
        if is_direct(number):
            raise OSError(errno.EINVAL, "no such alignment")
        return write(number, data, offset)

    monkeypatch.setattr(os, "pwrite", refuse)
    data = os.urandom(2 * BLOCK)
    written.write(in_memory(data), 0)
    written.write(in_memory(data), 2 * BLOCK)
    assert not is_direct(file)
    assert os.pread(file, 5 * BLOCK, 0) == data * 2


def test_an_error_of_the_medium_is_no_refusal(file: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space left"):
        Direct(file).write(memory()[:BLOCK], 0)


@pytest.mark.parametrize("direct", [True, False])
def test_a_digest_does_not_depend_on_how_zeros_are_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, direct: bool
) -> None:
    if not direct:
        refuse_direct(monkeypatch)
    size = 9 * MIB + 123
    make_disk(tmp_path / "disk", size)
    os.truncate(tmp_path / "disk", size)
    (tmp_path / "dense").write_bytes((tmp_path / "disk").read_bytes())
    directory = os.open(tmp_path, os.O_RDONLY)
    digests = [extents.digest(directory, name, lambda: None) for name in ("disk", "dense")]
    assert digests[0] == digests[1]
    with (tmp_path / "dense").open("r+b") as dense:
        dense.seek(size - 1)
        byte = dense.read(1)[0]
        dense.seek(size - 1)
        dense.write(bytes([byte ^ 1]))
    assert extents.digest(directory, "dense", lambda: None) != digests[0]
    os.truncate(tmp_path / "disk", size + 1)
    assert extents.digest(directory, "disk", lambda: None) != digests[0]
    os.close(directory)


_EXTENTS = st.lists(st.tuples(st.integers(0, 6), st.integers(1, 6)), max_size=6)


def test_where_the_cache_cannot_be_passed_it_is_dropped(file: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a copy would be proved by what is in memory."""
    refuse_direct(monkeypatch)
    os.write(file, os.urandom(4 * BLOCK))
    calls: list[tuple[str, int]] = []
    drop, read = os.posix_fadvise, os.preadv

    def dropping(number: int, offset: int, length: int, advice: int) -> None:
        assert (length, advice) == (BLOCK, os.POSIX_FADV_DONTNEED)
        calls.append(("drop", offset))
        drop(number, offset, length, advice)

    def reading(number: int, buffers: list[memoryview], offset: int) -> int:
        calls.append(("read", offset))
        return read(number, buffers, offset)

    directory = os.open(Path(f"/proc/self/fd/{file}").readlink().parent, os.O_RDONLY)
    with extents.Medium(directory, "disk") as medium:
        monkeypatch.setattr(os, "posix_fadvise", dropping)
        monkeypatch.setattr(os, "preadv", reading)
        for offset in (2 * BLOCK, 2 * BLOCK, BLOCK):
            medium.read(offset, BLOCK).release()
    os.close(directory)
    assert calls == [(call, offset) for offset in (2 * BLOCK, 2 * BLOCK, BLOCK) for call in ("drop", "read")]


@given(_EXTENTS, _EXTENTS)
def test_outside_is_what_is_present_and_not_known(present: list[tuple[int, int]], known: list[tuple[int, int]]) -> None:
    def laid(gaps: list[tuple[int, int]]) -> list[tuple[int, int]]:
        where, offset = [], 0
        for gap, length in gaps:
            where.append((offset + gap, length))
            offset += gap + length
        return where

    def every(where: list[tuple[int, int]]) -> list[int]:
        return [number for offset, length in where for number in range(offset, offset + length)]

    there, expected = laid(present), laid(known)
    assert every(extents.outside(there, expected)) == sorted(set(every(there)) - set(every(expected)))


@given(st.lists(st.tuples(st.integers(1, 3 * extents.CHUNK), st.integers(1, 3 * extents.CHUNK)), max_size=6))
def test_chunks_cover_the_extents_and_cross_no_border(gaps: list[tuple[int, int]]) -> None:
    where, offset = [], 0
    for gap, length in gaps:
        where.append((offset + gap, length))
        offset += gap + length
    found = list(extents.chunks(where))
    assert sum(length for _, length in found) == sum(length for _, length in where)
    assert all(start // extents.CHUNK == (start + length - 1) // extents.CHUNK for start, length in found)
    borders = {start for start, _ in where} | {start + length for start, length in where}
    joined = [start for start, _ in found] + [start + length for start, length in found]
    assert all(border in joined for border in borders)
