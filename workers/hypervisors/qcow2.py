"""qemu-img, with every format given: a guest can write a header of another format into its disk."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import msgspec

from droveway.errors import StepError
from droveway.wire import DiskInfo
from droveway.workers.hypervisors import durable

SECONDS = 600.0


def info(path: Path, disk_format: str) -> DiskInfo:
    """Size, allocation and backing file, also of a disk that a guest has open."""
    described = _describe(path, disk_format)
    return DiskInfo(
        name=path.name,
        format=disk_format,
        virtual_size=described["virtual-size"],
        allocated=path.stat().st_blocks * 512,
        backing=described.get("full-backing-filename", described.get("backing-filename", "")),
        backing_format=described.get("backing-filename-format", ""),
    )


def create(path: Path, size: int, *, kind: str) -> None:
    """A new blank disk of ``size`` bytes in the place of whatever is there, durable."""
    temporary = path.with_name(f"{path.name}.{kind}.part")
    _run("create", "-q", "-f", "qcow2", str(temporary), str(size))
    _put(temporary, path)


def convert(source: Path, source_format: str, path: Path) -> None:
    """A qcow2 disk with what another one holds and no backing file, durable."""
    temporary = path.with_name(f"{path.name}.part")
    _run("convert", "-f", source_format, "-O", "qcow2", str(source), str(temporary))
    _put(temporary, path)


def grow(path: Path, disk_format: str, size: int) -> None:
    """Grow to ``size`` bytes; done when it has that size; raises StepError when it is larger or a guest has it open."""
    present = _describe(path, disk_format)["virtual-size"]
    if present > size:
        raise StepError(f"{path} has {present} bytes: a disk never shrinks (to {size})")
    if present < size:
        _run("resize", "-q", "-f", disk_format, str(path), str(size))
        with path.open("rb") as file:
            os.fsync(file.fileno())


def rebase(path: Path, disk_format: str, backing: Path, backing_format: str) -> None:
    """Let an overlay rest on the same content at another path; done when it does.  Nothing of it is looked at."""
    present = info(path, disk_format)
    if (present.backing, present.backing_format) != (str(backing), backing_format):
        _run("rebase", "-q", "-u", "-f", disk_format, "-F", backing_format, "-b", str(backing), str(path))
        with path.open("rb") as file:
            os.fsync(file.fileno())


def _describe(path: Path, disk_format: str) -> dict[str, Any]:
    # Sharing is forced for this look alone, which reads the header; all else obeys the lock of a running guest.
    described: dict[str, Any] = msgspec.json.decode(_run("info", "-U", "--output=json", "-f", disk_format, str(path)))
    return described


def _put(temporary: Path, path: Path) -> None:
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    temporary.rename(path)
    durable.sync_directory(path.parent)


def _run(*arguments: str) -> bytes:
    try:
        return subprocess.run(["qemu-img", *arguments], check=True, capture_output=True, timeout=SECONDS).stdout
    except FileNotFoundError:
        raise StepError("qemu-img is missing: install the Debian package qemu-utils") from None
    except subprocess.TimeoutExpired:
        raise StepError(f"qemu-img {arguments[0]} did not end within {SECONDS:g} s") from None
    except subprocess.CalledProcessError as error:
        text = " ".join(error.stderr.decode(errors="replace").split())
        raise StepError(f"qemu-img {arguments[0]} has failed: {text}") from None
