"""Runs qemu-img, always with the format given, since a guest can write a header of another format into its disk.

A disk is opened once, and no link is followed: qemu-img gets the very file that was opened and checked.  A path may
lead through an open directory (`droveway.workers.directories.Directory.path`).
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from droveway.errors import StepError
from droveway.wire.commands import DiskInfo
from droveway.workers.hypervisors import durable, headers

SECONDS = 600.0

BEAT: Final = 0.2
"""Seconds between two calls of ``beat`` during a long run of qemu-img."""

LIMITS: Final = ("prlimit", "--as=1073741824", "--cpu=30", "--")
"""Limits for ``qemu-img info`` on a disk that may be hostile: 1 GiB of memory and 30 s of CPU, as Nova sets them."""

MODE: Final = 0o640
"""Permissions of a guest's disk."""

_NO_FILE: Final = (errno.ELOOP, errno.ENXIO)
"""The kernel's errors when this module opens something that is not a file: ELOOP for a link, ENXIO for a socket."""

_OPEN: Final = re.compile(r"/proc/self/fd/([0-9]+)(?:/|$)")


def info(path: Path, disk_format: str) -> DiskInfo:
    """Return size, allocation and backing file of a disk, also of one that a guest has open.

    Raises StepError (``disk-format``) for any format but raw and qcow2, and for a disk whose data lies in another file.
    """
    with _opened(path, disk_format) as (file, through):
        header = _header(file, path, disk_format)
        described = _describe(through, disk_format)
        if "data-file" in described.get("format-specific", {}).get("data", {}):
            # The check of the header above should have refused the disk.  If our reading differs from QEMU's, QEMU
            # counts.
            headers.require_self_contained(headers.Header(0, "", "", external=True, data_file="?"), real_path(path))
        backing = described.get("backing-filename", "")
        if backing != (header.backing if header is not None else ""):
            raise StepError(
                f"the header of {real_path(path)} names another backing file than qemu-img reads", code=headers.CODE
            )
        return DiskInfo(
            name=path.name,
            format=disk_format,
            virtual_size=described["virtual-size"],
            allocated=os.fstat(file).st_blocks * 512,
            backing=str(Path(real_path(path)).parent / backing) if backing and ":" not in backing else backing,
            backing_format=described.get("backing-filename-format", ""),
        )


def create(path: Path, size: int, *, kind: str) -> None:
    """Make a new blank disk of ``size`` bytes in place of whatever is there, durably."""
    temporary = path.with_name(f"{path.name}.{kind}.part")
    _make(temporary)
    _run("create", "-q", "-f", "qcow2", str(temporary), str(size))
    _put(temporary, path)


def convert(source: Path, source_format: str, path: Path, *, beat: Callable[[], None] | None = None) -> None:
    """Make a qcow2 disk with the content of ``source`` and no backing file, durably.

    The run has no time limit.  ``beat`` is called now and then, and raises to end the run.
    """
    temporary = path.with_name(f"{path.name}.part")
    _make(temporary)
    _run("convert", "-f", source_format, "-O", "qcow2", str(source), str(temporary), beat=beat)
    _put(temporary, path)


def grow(path: Path, disk_format: str, size: int) -> None:
    """Grow the disk to ``size`` bytes; does nothing when it has that size.

    Raises StepError when the disk is larger, or a guest has it open.
    """
    present = info(path, disk_format).virtual_size
    if present > size:
        raise StepError(f"{real_path(path)} has {present} bytes: a disk never shrinks (to {size})")
    if present < size:
        with _opened(path, disk_format) as (file, through):
            _header(file, path, disk_format)
            _run("resize", "-q", "-f", disk_format, str(through), str(size))
            os.fsync(file)


def rebase(path: Path, disk_format: str, backing: Path, backing_format: str) -> None:
    """Let an overlay rest on a file with the same content at another path; the contents are not compared.

    Does nothing when it rests on that file already.
    """
    headers.require_format(backing_format, f"{backing}, on which {path.name} rests,")
    present = info(path, disk_format)
    if (present.backing, present.backing_format) != (str(backing), backing_format):
        with _opened(path, disk_format) as (file, through):
            _header(file, path, disk_format)
            _run("rebase", "-q", "-u", "-f", disk_format, "-F", backing_format, "-b", str(backing), str(through))
            os.fsync(file)


def real_path(path: Path) -> str:
    """Return the path for a message; a path below ``/proc/self/fd`` is replaced by the one that an operator knows."""
    return str(Path(os.path.realpath(path.parent)) / path.name) if _OPEN.match(str(path)) else str(path)


@contextlib.contextmanager
def _opened(path: Path, disk_format: str) -> Iterator[tuple[int, Path]]:
    """Open the disk and yield its descriptor, and a path by which a tool gets this very file."""
    headers.require_format(disk_format, real_path(path))
    try:
        # O_NONBLOCK, because a FIFO may have the disk's name, and opening one would wait for its other end.
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise StepError(f"{real_path(path)} is not there", code="missing") from None
    except OSError as error:
        if error.errno in _NO_FILE:
            raise StepError(f"{real_path(path)} is no plain file", code="link") from None
        raise
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise StepError(f"{real_path(path)} is no plain file", code="link")
        yield file, Path(f"/proc/self/fd/{file}")
    finally:
        os.close(file)


def _header(file: int, path: Path, disk_format: str) -> headers.Header | None:
    """Return the disk's header; None for a raw disk, whose bytes mean nothing, whatever its guest wrote."""
    if disk_format == headers.RAW:
        return None
    header = headers.read(file, real_path(path))
    headers.require_self_contained(header, real_path(path))
    return header


def _describe(path: Path, disk_format: str) -> dict[str, Any]:
    # -U reads in spite of a running guest's lock.  Only this call uses it, since it reads no more than the header.
    words = ("info", "-U", "--output=json", "-f", disk_format, str(path))
    described: dict[str, Any] = msgspec.json.decode(_run(*words, under=LIMITS))
    return described


def _make(path: Path) -> None:
    """Make an empty file with `MODE` that qemu-img writes into.

    If qemu-img made the file, the umask would decide its permissions.
    """
    with contextlib.suppress(FileNotFoundError):
        path.unlink()  # a killed run left it
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, MODE))


def _put(temporary: Path, path: Path) -> None:
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    temporary.rename(path)
    durable.sync_directory(path.parent)


def _run(*arguments: str, under: Sequence[str] = (), beat: Callable[[], None] | None = None) -> bytes:
    passed = [int(found[1]) for found in map(_OPEN.match, arguments) if found is not None]
    words = [*under, "qemu-img", *arguments]
    try:
        if beat is not None:
            return _watched(words, passed, beat)
        return subprocess.run(words, check=True, capture_output=True, timeout=SECONDS, pass_fds=passed).stdout
    except FileNotFoundError as error:
        package = "util-linux" if under and error.filename == under[0] else "qemu-utils"
        raise StepError(f"{error.filename} is missing: install the Debian package {package}") from None
    except subprocess.TimeoutExpired:
        raise StepError(f"qemu-img {arguments[0]} did not end within {SECONDS:g} s") from None
    except subprocess.CalledProcessError as error:
        text = " ".join(error.stderr.decode(errors="replace").split())
        for file in passed:
            through = Path(f"/proc/self/fd/{file}")
            text = text.replace(str(through), str(through.readlink()))
        raise StepError(f"qemu-img {arguments[0]} has failed: {text}") from None


def _watched(words: list[str], passed: list[int], beat: Callable[[], None]) -> bytes:
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, pass_fds=passed) as process:
        try:
            while True:
                beat()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    output, complaint = process.communicate(timeout=BEAT)
                    break
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, words, output, complaint)
    return output
