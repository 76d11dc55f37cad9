"""Opens, renames and deletes the servers' directories below one host's instances directory.

Nova names ``<uuid>``, ``<uuid>_resize`` (set aside) and ``<uuid>_del`` (a reverted copy, until the source's guest
runs).  Droveway adds ``<uuid>_keep-<move>`` (kept after confirm), ``<uuid>.part-<move>-<host>`` (a copy that is being
made) and ``<uuid>.gone-<move>`` (being deleted).  No link is followed below the instances directory.  Two hosts may
share it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from droveway.errors import Refused, StepError
from droveway.workers import names, stores
from droveway.workers.hypervisors import base, headers

MARKER: Final = "droveway.json"
MANIFEST: Final = "droveway-manifest.json"
DISK_INFO: Final = "disk.info"
"""Nova's record of the disks' formats; it is made anew on the destination and never copied."""
CONFIG: Final = base.CONFIG
BASES: Final = base.BASES

_DISK: Final = re.compile(r"disk(\.(?!info$)[a-z0-9]+)?")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_PLAIN: Final = re.compile(r"[._]?[A-Za-z0-9][A-Za-z0-9._-]*")
_NOT_THERE: Final = (errno.ENOENT,)
_LINK: Final = (errno.ELOOP, errno.ENOTDIR)

Record = TypeVar("Record", bound=msgspec.Struct)


class CopiedDisk(msgspec.Struct, frozen=True, kw_only=True):
    """One copied disk; sizes in bytes.  ``sent`` is how much the last run fetched, or copied on this host."""

    name: str
    format: str
    size: int
    allocated: int
    sent: int
    checksum: str
    source_checksum: str
    backing: str = ""
    """The digest of the base of an overlay; empty for a disk without a base."""
    backing_format: str = ""


class Marker(msgspec.Struct, frozen=True, kw_only=True):
    """Names the move whose copy a directory is; the file is written once the copy was verified."""

    move: str
    epoch: int
    server: str
    host: str
    """The host that made the copy: two destinations of one move may share storage, and the first may have died."""
    disks: list[CopiedDisk] = []
    bases: list[CopiedDisk] = []
    """The bases that were copied with the disks, because this host had none with that content."""


class SetAsideDisk(msgspec.Struct, frozen=True, kw_only=True):
    """A disk as it was when it was set aside; sizes in bytes."""

    name: str
    format: str
    size: int
    allocated: int
    mtime_ns: int
    inode: int
    checksum: str = ""
    backing: str = ""
    """The digest of the base of an overlay; empty for a disk without a base."""
    backing_format: str = ""


class BaseFile(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a base file as it was when a move set aside an overlay on it.

    ``file`` is its name in the directory of bases, and ``digest`` that of its content.
    """

    file: str
    digest: str
    format: str
    size: int
    mtime_ns: int
    inode: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Lists the disks that a move set aside; the file lies in ``<uuid>_resize``."""

    move: str
    epoch: int
    server: str
    disks: list[SetAsideDisk]
    bases: list[BaseFile] = []


def is_disk(name: str) -> bool:
    """Return whether a file of this name is a disk (Nova's names: disk, disk.eph0, disk.swap, disk.config)."""
    return _DISK.fullmatch(name) is not None


def is_digest(name: str) -> bool:
    """Return whether a base's name is the digest of its content."""
    return _DIGEST.fullmatch(name) is not None


def open_file(directory: int, name: str, flags: int = os.O_RDONLY) -> int:
    """Open a regular file of an open directory; raises StepError (``link``) when it is anything else."""
    if "/" in name:
        # A manifest on shared storage may come from another host, and so may a name in it.
        raise StepError(f"{name!r} leads out of its directory: only plain files in it are opened", code="link")
    try:
        file = os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o640, dir_fd=directory)
    except OSError as error:
        if error.errno in _LINK:
            raise StepError(f"{name} is a link: only plain files are opened", code="link") from None
        raise
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise StepError(f"{name} is no plain file", code="link")
    return file


class Directory:
    """One directory that was opened once.

    All reads and writes go to the opened directory, even when another one has got its name since.
    """

    def __init__(self, file: int, where: Path) -> None:
        """Take the open directory ``file``, which the caller closes, and its path ``where``, for messages only."""
        self.file = file
        self.where = where

    def path(self, name: str) -> Path:
        """Return a path to a file of this directory that stays right when the directory is renamed.

        The path is valid in this process only, and only while `file` is open.
        """
        return Path(f"/proc/self/fd/{self.file}", _plain(name))

    def entries(self) -> list[str]:
        """Return the names of everything that lies in the directory."""
        return os.listdir(self.file)  # noqa: PTH208 - pathlib lists no open directory

    def disks(self) -> list[str]:
        """Return the names of its disks: the root disk, then the others in the order of their names."""
        return sorted(entry for entry in self.entries() if is_disk(entry))

    def recorded(self) -> dict[str, str]:
        """Return the disks' formats by file name as ``disk.info`` has them; empty when there is no such file.

        Raises StepError (``damaged``) for a file that cannot be read.
        """
        data = self.read(DISK_INFO)
        if data is None:
            return {}
        try:
            known = msgspec.json.decode(data, type=dict[str, str])
        except msgspec.DecodeError as error:
            raise StepError(f"{self.where / DISK_INFO} is damaged: {error}", code="damaged") from None
        return {path.rpartition("/")[2]: disk_format for path, disk_format in known.items()}

    def formats(self) -> dict[str, str]:
        """Return the recorded format of every disk in the directory.

        Raises StepError (``disk-format``) for a disk without a recorded format, and for all formats but raw and qcow2.
        A format that is read from the bytes of a disk would be chosen by whoever wrote them, and that is the guest.
        """
        known = {CONFIG: headers.RAW, **self.recorded()}
        found = {}
        for disk in self.disks():
            if disk not in known:
                raise StepError(
                    f"the format of {self.where / disk} is recorded nowhere: say in {self.where / DISK_INFO} whether "
                    "it is raw or qcow2",
                    code=headers.CODE,
                )
            headers.require_format(known[disk], str(self.where / disk))
            found[disk] = known[disk]
        return found

    def marker(self) -> Marker | None:
        """Return the marker, which names the move whose copy this is; None when there is none."""
        return self._record(MARKER, Marker)

    def manifest(self) -> Manifest | None:
        """Return the manifest of what was set aside here; None when there is none."""
        return self._record(MANIFEST, Manifest)

    def write(self, file: str, data: bytes) -> None:
        """Replace the file by ``data``, durably."""
        _write_file(self.file, file, data)

    def write_record(self, record: Marker | Manifest) -> None:
        """Write the marker or the manifest, durably."""
        self.write(MARKER if isinstance(record, Marker) else MANIFEST, msgspec.json.encode(record))

    def unlink(self, file: str) -> None:
        """Delete the file and what a killed `write` of it left; does nothing when neither is there."""
        found = False
        for name in (file, _unfinished(file)):
            try:
                os.unlink(name, dir_fd=self.file)
            except FileNotFoundError:
                continue
            found = True
        if found:
            os.fsync(self.file)

    def read(self, file: str) -> bytes | None:
        """Return the content of the file; None when it is not there."""
        try:
            opened = open_file(self.file, file)
        except FileNotFoundError:
            return None
        with os.fdopen(opened, "rb") as stream:
            return stream.read()

    def _record(self, file: str, kind: type[Record]) -> Record | None:
        data = self.read(file)
        if data is None:
            return None
        try:
            return msgspec.json.decode(data, type=kind)
        except msgspec.DecodeError as error:
            raise StepError(f"{self.where / file} is damaged: {error}", code="damaged") from None


class Directories:
    """The servers' directories below ``instances``, by name."""

    def __init__(self, instances: Path) -> None:
        self.instances = instances

    def ensure(self) -> None:
        """Make the instances directory of a new host and give it its id; does nothing when it has both."""
        if not self.instances.is_symlink():
            self.instances.mkdir(parents=True, exist_ok=True)
        with self.top() as top:
            stores.begin(top, self.instances)

    def path(self, name: str, *parts: str) -> Path:
        """Return the path of a server's directory, for callers that need a path."""
        return self.instances.joinpath(name, *parts)

    @contextlib.contextmanager
    def top(self) -> Iterator[int]:
        """Open the instances directory and yield it; raises StepError (``storage-away``) when it is not there."""
        try:
            top = os.open(self.instances, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise StepError(
                f"the servers' directory {self.instances} is not there: mount it again", code="storage-away"
            ) from None
        try:
            yield top
        finally:
            os.close(top)

    @contextlib.contextmanager
    def open(self, name: str) -> Iterator[int]:
        """Open a directory and yield it; raises StepError (``missing``, or ``link`` for anything else)."""
        with self.top() as top:
            directory = self._open(top, name)
        try:
            yield directory
        finally:
            os.close(directory)

    @contextlib.contextmanager
    def opened(self, name: str) -> Iterator[Directory]:
        """Open a directory and yield it; raises StepError as `open` does.

        The caller does all its work in the directory that is opened here, even if the directory is renamed meanwhile.
        """
        with self.open(name) as file:
            yield Directory(file, self.path(name))

    def exists(self, name: str) -> bool:
        """Return whether the directory is there; raises StepError (``link``) when something else has its name."""
        try:
            with self.open(name):
                return True
        except StepError as error:
            if error.error_code == "missing":
                return False
            raise

    def create(self, name: str) -> None:
        """Make the directory, durably; also finishes what a killed worker began to make."""
        with self.top() as top:
            with contextlib.suppress(FileExistsError):
                os.mkdir(_plain(name), 0o750, dir_fd=top)
            made = self._open(top, name)
            try:
                owner = os.fstat(top)
                if os.geteuid() == os.fstat(made).st_uid == 0 != owner.st_uid:
                    # Nova's own user reads what lies in it, and others may not.
                    os.fchown(made, owner.st_uid, owner.st_gid)
            finally:
                os.close(made)
            os.fsync(top)

    def rename(self, old: str, new: str) -> None:
        """Rename the directory, durably; raises StepError (``in-the-way``) when the new name is taken."""
        taken = StepError(f"{self.path(new)} is in the way of {old}: see whose it is", code="in-the-way")
        if self.exists(new):
            raise taken
        with self.top() as top:
            os.close(self._open(top, old))
            try:
                names.rename(top, old, top, _plain(new))
            except FileExistsError:
                raise taken from None
            os.fsync(top)

    def remove(self, name: str) -> None:
        """Delete the directory and all in it, marker and manifest last; does nothing when it is not there.

        When the worker is killed meanwhile, the next one can still read whose the directory is.  No link is followed.
        """
        if self.exists(name):
            with self.open(name) as directory:
                for entry in os.listdir(directory):  # noqa: PTH208 - as below
                    if entry in (MARKER, MANIFEST):
                        continue
                    if stat.S_ISDIR(os.stat(entry, dir_fd=directory, follow_symlinks=False).st_mode):
                        shutil.rmtree(entry, dir_fd=directory)
                    else:
                        os.unlink(entry, dir_fd=directory)
                os.fsync(directory)
            with self.top() as top:
                shutil.rmtree(name, dir_fd=top)
                os.fsync(top)

    def is_empty(self, name: str) -> bool:
        """Return whether the directory is empty; raises StepError (``missing``) when it is not there."""
        with self.opened(name) as directory:
            return not directory.entries()

    def disks(self, name: str) -> list[str]:
        """Return the names of the disks in a directory; see `Directory.disks`."""
        with self.opened(name) as directory:
            return directory.disks()

    def formats(self, name: str) -> dict[str, str]:
        """Return the format of every disk in a directory; see `Directory.formats`."""
        with self.opened(name) as directory:
            return directory.formats()

    def format_record(self, server: str, formats: dict[str, str]) -> bytes:
        """Encode a ``disk.info`` as Nova writes it: each disk's format by the path that the disk has in use."""
        known = {str(self.path(server, disk)): disk_format for disk, disk_format in sorted(formats.items())}
        return msgspec.json.encode(known)

    def write_formats(self, name: str, server: str, formats: dict[str, str]) -> None:
        """Write the ``disk.info`` of a directory, durably."""
        with self.opened(name) as directory:
            directory.write(DISK_INFO, self.format_record(server, formats))

    def marker(self, name: str) -> Marker | None:
        """Return the marker in the directory; None when there is none, or no directory."""
        if not self.exists(name):
            return None
        with self.opened(name) as directory:
            return directory.marker()

    def manifest(self, name: str) -> Manifest | None:
        """Return the manifest in the directory; None when there is none, or no directory."""
        if not self.exists(name):
            return None
        with self.opened(name) as directory:
            return directory.manifest()

    def write_record(self, name: str, record: Marker | Manifest) -> None:
        """Write the marker or the manifest of a directory, durably."""
        with self.opened(name) as directory:
            directory.write_record(record)

    def unlink(self, name: str, file: str) -> None:
        """Delete one file of a directory; does nothing when the file or the directory is not there."""
        if self.exists(name):
            with self.opened(name) as directory:
                directory.unlink(file)

    def write_probe(self, probe: str, text: str) -> None:
        """Write the storage probe, a file by which another host sees that it shares this directory."""
        with self.top() as top:
            _write_file(top, _plain(probe), text.encode())

    def has_probe(self, probe: str) -> bool:
        """Return whether the storage probe is seen here; an error is raised and never taken for "no"."""
        with self.top() as top:
            # A network file system may remember that a name was not there, but a listing is always fresh.
            return _plain(probe) in os.listdir(top)  # noqa: PTH208 - pathlib lists no open directory

    def remove_probe(self, probe: str) -> None:
        """Delete the storage probe; does nothing when it is not there."""
        with self.top() as top:
            Directory(top, self.instances).unlink(_plain(probe))

    def identity(self) -> str:
        """Return the random id of the instances directory, after writing one if it has none; see `workers/stores.py`.

        An inode would not do as an id: another file system that is mounted in its place has a root with the same inode.
        """
        with self.top() as top:
            return stores.identify(top, self.instances)

    def known_identity(self) -> str:
        """Return the id of the instances directory; empty when it has none, and this call writes none."""
        with self.top() as top:
            return stores.known(top, self.instances)

    def free_bytes(self) -> int:
        """Return how many bytes an ordinary process may still write here."""
        with self.top() as top:
            space = os.fstatvfs(top)
        return space.f_bavail * space.f_frsize

    def _open(self, top: int, name: str) -> int:
        try:
            return os.open(_plain(name), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=top)
        except OSError as error:
            if error.errno in _NOT_THERE:
                raise StepError(f"{self.path(name)} is not there", code="missing") from None
            if error.errno in _LINK:
                raise StepError(f"{self.path(name)} is no directory: links are not followed", code="link") from None
            raise


def _plain(name: str) -> str:
    if not _PLAIN.fullmatch(name):
        raise Refused(f"{name!r} is no plain file name")
    return name


def _unfinished(name: str) -> str:
    return f".{name}.new"


def _write_file(directory: int, name: str, data: bytes) -> None:
    temporary = _unfinished(name)
    file = open_file(directory, temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    with os.fdopen(file, "wb") as stream:
        owner = os.fstat(directory)
        if os.geteuid() == 0 != owner.st_uid:
            os.fchown(file, owner.st_uid, owner.st_gid)  # Nova's own user has to read it
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    os.fsync(directory)
