"""Reads the header of a qcow2 disk itself, before any tool opens the disk.

A disk's format, raw or qcow2, is the one that was recorded.  It is never found out from the disk's bytes, because the
guest writes those.  A qcow2 file may name other files.  An action that moves the disk checks its backing file.  An
external data file is refused here: nothing copies it, and every tool would open whatever file it names.
"""

from __future__ import annotations

import os
import struct
from typing import Final, NamedTuple

from oslo_utils import units

from droveway.errors import StepError

RAW: Final = "raw"
QCOW2: Final = "qcow2"
FORMATS: Final = (RAW, QCOW2)
"""The formats that are moved; the others may name files of the host in the bytes of the disk."""

CODE: Final = "disk-format"

_MAGIC: Final = b"QFI\xfb"
_FIXED: Final = struct.Struct(">4sIQIIQI")
_FEATURES: Final = struct.Struct(">Q")
_EXTENSION: Final = struct.Struct(">II")
_LENGTH_AT: Final = 100
_FEATURES_AT: Final = 72
_OLD_LENGTH: Final = 72
_EXTERNAL_DATA: Final = 1 << 2
_BACKING_FORMAT: Final = 0xE2792ACA
_DATA_FILE: Final = 0x44415441
_MOST_BYTES: Final = 2 * units.Mi
"""Most bytes of a header: QEMU keeps it within the first cluster, which has at most so many."""
_LONGEST_NAME: Final = 1023
_CLUSTER_BITS: Final = range(9, 22)


class Header(NamedTuple):
    """A qcow2 header; size in bytes, names empty where the header has none."""

    virtual_size: int
    backing: str
    backing_format: str
    external: bool
    """Whether the data lies in another file."""
    data_file: str


def require_format(disk_format: str, whose: str) -> None:
    """Raise StepError (``disk-format``) for any format but raw and qcow2."""
    if disk_format not in FORMATS:
        raise StepError(
            f"{whose} is recorded as {disk_format[:20]!r}: only raw and qcow2 disks are moved, convert it first",
            code=CODE,
        )


def require_self_contained(header: Header | None, whose: str) -> None:
    """Raise StepError (``disk-format``) for a disk whose data lies in another file."""
    if header is not None and (header.external or header.data_file):
        raise StepError(
            f"{whose} keeps its data in another file, {header.data_file[:200]!r}: convert it to one of its own first",
            code=CODE,
        )


def read(file: int, path: str) -> Header | None:
    """Read the header from an open file; returns None when it is no qcow2 file.

    Raises StepError (``disk-format``) for a damaged header.  ``path`` is for messages only.
    """
    start = os.pread(file, _FIXED.size, 0)
    if len(start) < _FIXED.size or not start.startswith(_MAGIC):
        return None
    _, version, backing_at, backing_size, cluster_bits, size, _ = _FIXED.unpack(start)
    if version not in (2, 3) or cluster_bits not in _CLUSTER_BITS or backing_size > _LONGEST_NAME:
        raise _damaged(path)
    head = os.pread(file, min(1 << cluster_bits, _MOST_BYTES), 0)
    if backing_at + backing_size > len(head):
        raise _damaged(path)
    features, length = 0, _OLD_LENGTH
    if version == 3:  # noqa: PLR2004 - QEMU calls the two versions 2 and 3
        (features,) = _FEATURES.unpack_from(_padded(head), _FEATURES_AT)
        length = int.from_bytes(_padded(head)[_LENGTH_AT : _LENGTH_AT + 4], "big")
    known = dict(_extensions(head, length, backing_at or len(head), path))
    named = head[backing_at : backing_at + backing_size] if backing_at else b""
    return Header(
        virtual_size=size,
        backing=_text(named),
        backing_format=_text(known.get(_BACKING_FORMAT, b"")),
        external=bool(features & _EXTERNAL_DATA),
        data_file=_text(known.get(_DATA_FILE, b"")),
    )


def _extensions(head: bytes, offset: int, end: int, path: str) -> list[tuple[int, bytes]]:
    found = []
    while offset + _EXTENSION.size <= min(end, len(head)):
        kind, length = _EXTENSION.unpack_from(head, offset)
        if not kind:
            break
        offset += _EXTENSION.size
        if offset + length > len(head):
            raise _damaged(path)
        found.append((kind, head[offset : offset + length]))
        offset += -(-length // 8) * 8
    return found


def _padded(head: bytes) -> bytes:
    return head.ljust(_LENGTH_AT + 4, b"\0")


def _text(data: bytes) -> str:
    return data.rstrip(b"\0").decode(errors="replace")


def _damaged(path: str) -> StepError:
    return StepError(f"the qcow2 header of {path} is damaged: restore the disk", code=CODE)
