"""The servers' directories below one host's instances directory.

Names are Nova's: ``<uuid>``, ``<uuid>_resize`` (set aside), ``<uuid>_del`` (a revert's, until its guest runs).  Ours
are ``<uuid>_keep-<move>`` (kept after confirm), and while they are made or removed ``<uuid>.part-<move>-<host>`` and
``<uuid>.gone-<move>``.  Nothing beneath the instances directory is reached through a link.  Two hosts may share it.
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
"""Made anew on the destination, never copied."""
CONFIG: Final = base.CONFIG
BASES: Final = base.BASES

_DISK: Final = re.compile(r"disk(\.(?!info$)[a-z0-9]+)?")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_PLAIN: Final = re.compile(r"[._]?[A-Za-z0-9][A-Za-z0-9._-]*")
_NOT_THERE: Final = (errno.ENOENT,)
_LINK: Final = (errno.ELOOP, errno.ENOTDIR)

Record = TypeVar("Record", bound=msgspec.Struct)


class CopiedDisk(msgspec.Struct, frozen=True, kw_only=True):
    """One copied disk: sizes in bytes, ``sent`` being what crossed the wire (or was copied here) in the last run."""

    name: str
    format: str
    size: int
    allocated: int
    sent: int
    checksum: str
    source_checksum: str
    backing: str = ""
    """The digest of the base that an overlay rests on."""
    backing_format: str = ""


class Marker(msgspec.Struct, frozen=True, kw_only=True):
    """Whose copy a directory is; lies in it from when the copy was verified."""

    move: str
    epoch: int
    server: str
    host: str
    """Who made it: of two destinations of one move that share storage, one may have died over its copy."""
    disks: list[CopiedDisk] = []
    bases: list[CopiedDisk] = []
    """The bases that were copied with the disks, since this host had none of their content."""


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
    """The digest of the base that an overlay rests on."""
    backing_format: str = ""


class BaseFile(msgspec.Struct, frozen=True, kw_only=True):
    """A base as it was when an overlay on it was set aside: its file among the bases, and its content's digest."""

    file: str
    digest: str
    format: str
    size: int
    mtime_ns: int
    inode: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What was set aside, by which move; lies in ``<uuid>_resize``."""

    move: str
    epoch: int
    server: str
    disks: list[SetAsideDisk]
    bases: list[BaseFile] = []


def is_disk(name: str) -> bool:
    """Whether a file of this name is a disk (Nova's names: disk, disk.eph0, disk.swap, disk.config)."""
    return _DISK.fullmatch(name) is not None


def is_digest(name: str) -> bool:
    """Whether a base's name is its content's digest."""
    return _DIGEST.fullmatch(name) is not None


def open_file(directory: int, name: str, flags: int = os.O_RDONLY) -> int:
    """Open a regular file of an open directory; raises StepError (``link``) when it is anything else."""
    if "/" in name:
        # It may come from a manifest, which on shared storage another host could have written.
        raise StepError(f"{name!r} leads elsewhere: only plain files are opened", code="link")
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
    """One directory, opened once: what is read of it and written to it is this one, whatever has its name by now."""

    def __init__(self, file: int, where: Path) -> None:
        """``file`` is the directory, which stays the caller's; ``where`` is its path, for words alone."""
        self.file = file
        self.where = where

    def path(self, name: str) -> Path:
        """A path to a file of this directory that no rename leads elsewhere; holds where `file` is open."""
        return Path(f"/proc/self/fd/{self.file}", _plain(name))

    def entries(self) -> list[str]:
        """The names of all that lies in it."""
        return os.listdir(self.file)  # noqa: PTH208 - pathlib lists no open directory

    def disks(self) -> list[str]:
        """The names of its disks: the root disk, then the others in the order of their names."""
        return sorted(entry for entry in self.entries() if is_disk(entry))

    def recorded(self) -> dict[str, str]:
        """What ``disk.info`` says of the disks' formats, by file name; empty when there is none."""
        data = self.read(DISK_INFO)
        if data is None:
            return {}
        try:
            known = msgspec.json.decode(data, type=dict[str, str])
        except msgspec.DecodeError as error:
            raise StepError(f"{self.where / DISK_INFO} is damaged: {error}", code="damaged") from None
        return {path.rpartition("/")[2]: disk_format for path, disk_format in known.items()}

    def formats(self) -> dict[str, str]:
        """The format of every disk that lies here, as it was recorded.

        Raises StepError (``disk-format``) for a disk of which nothing was recorded, and for all but raw and qcow2: a
        format that is found out from a disk's bytes is the choice of whoever wrote them.
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
        """Whose copy it is; None when it is nobody's."""
        return self._record(MARKER, Marker)

    def manifest(self) -> Manifest | None:
        """What was set aside here; None when nothing was."""
        return self._record(MANIFEST, Manifest)

    def write(self, file: str, data: bytes) -> None:
        """Replace a file, durably."""
        _write_file(self.file, file, data)

    def write_record(self, record: Marker | Manifest) -> None:
        """Write the marker or the manifest, durably."""
        self.write(MARKER if isinstance(record, Marker) else MANIFEST, msgspec.json.encode(record))

    def unlink(self, file: str) -> None:
        """Delete a file and what a killed write of it has left; done when neither is there."""
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
        """What a file holds; None when it is not there."""
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
    """The directories below ``instances``."""

    def __init__(self, instances: Path) -> None:
        self.instances = instances

    def ensure(self) -> None:
        """Make the instances directory of a new host and give it its id; done when it has both."""
        if not self.instances.is_symlink():
            self.instances.mkdir(parents=True, exist_ok=True)
        with self.top() as top:
            stores.begin(top, self.instances)

    def path(self, name: str, *parts: str) -> Path:
        """The path of a server's directory, for those who need one."""
        return self.instances.joinpath(name, *parts)

    @contextlib.contextmanager
    def top(self) -> Iterator[int]:
        """The instances directory, open; raises StepError (``storage-away``) when it is not there."""
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
        """A directory, open; raises StepError (``missing`` or ``link``) when it is none."""
        with self.top() as top:
            directory = self._open(top, name)
        try:
            yield directory
        finally:
            os.close(directory)

    @contextlib.contextmanager
    def opened(self, name: str) -> Iterator[Directory]:
        """A directory, opened once for all that is done to it; raises StepError like `open`."""
        with self.open(name) as file:
            yield Directory(file, self.path(name))

    def exists(self, name: str) -> bool:
        """Whether the directory is there; raises StepError when something else has its name."""
        try:
            with self.open(name):
                return True
        except StepError as error:
            if error.error_code == "missing":
                return False
            raise

    def create(self, name: str) -> None:
        """Make the directory, durably; done when it is there."""
        with self.top() as top:
            try:
                os.mkdir(_plain(name), 0o750, dir_fd=top)
            except FileExistsError:
                os.close(self._open(top, name))
                return
            owner = os.fstat(top)
            if os.geteuid() == 0 != owner.st_uid:
                # Nova's own user goes on to read what lies in it, and its group is not everybody.
                os.chown(name, owner.st_uid, owner.st_gid, dir_fd=top, follow_symlinks=False)
            os.fsync(top)

    def rename(self, old: str, new: str) -> None:
        """Give the directory another name, durably; raises StepError (``in-the-way``) when that is taken."""
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
        """Delete the directory with all in it, its marker and manifest last; done when it is not there.

        Whoever is killed in it finds whose the directory is for as long as anything else lies in it.  No link is
        followed.
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
        """Whether nothing lies in the directory; raises StepError (``missing``) when it is not there."""
        with self.opened(name) as directory:
            return not directory.entries()

    def disks(self, name: str) -> list[str]:
        """The names of the disks in a directory: the root disk, then the others in the order of their names."""
        with self.opened(name) as directory:
            return directory.disks()

    def formats(self, name: str) -> dict[str, str]:
        """The format of every disk in a directory; see `Directory.formats`."""
        with self.opened(name) as directory:
            return directory.formats()

    def format_record(self, server: str, formats: dict[str, str]) -> bytes:
        """A ``disk.info`` as Nova has it: the path that each disk has in use, and its format."""
        known = {str(self.path(server, disk)): disk_format for disk, disk_format in sorted(formats.items())}
        return msgspec.json.encode(known)

    def write_formats(self, name: str, server: str, formats: dict[str, str]) -> None:
        """Write the ``disk.info`` of a directory, durably."""
        with self.opened(name) as directory:
            directory.write(DISK_INFO, self.format_record(server, formats))

    def marker(self, name: str) -> Marker | None:
        """Whose copy the directory is; None when it is nobody's or not there."""
        if not self.exists(name):
            return None
        with self.opened(name) as directory:
            return directory.marker()

    def manifest(self, name: str) -> Manifest | None:
        """What was set aside in the directory; None when nothing was or it is not there."""
        if not self.exists(name):
            return None
        with self.opened(name) as directory:
            return directory.manifest()

    def write_record(self, name: str, record: Marker | Manifest) -> None:
        """Write the marker or the manifest of a directory, durably."""
        with self.opened(name) as directory:
            directory.write_record(record)

    def unlink(self, name: str, file: str) -> None:
        """Delete one file of a directory; done when it or the directory is not there."""
        if self.exists(name):
            with self.opened(name) as directory:
                directory.unlink(file)

    def write_probe(self, probe: str, text: str) -> None:
        """Write the file by which another host sees that it shares this directory."""
        with self.top() as top:
            _write_file(top, _plain(probe), text.encode())

    def has_probe(self, probe: str) -> bool:
        """Whether the file is seen here.  An error is not "no": it is raised."""
        with self.top() as top:
            # A listing is fresh where a network file system may still remember that a name was not there.
            return _plain(probe) in os.listdir(top)  # noqa: PTH208 - pathlib lists no open directory

    def remove_probe(self, probe: str) -> None:
        """Delete the file; done when it is not there."""
        with self.top() as top:
            Directory(top, self.instances).unlink(_plain(probe))

    def identity(self) -> str:
        """The random id of the instances directory, written once into it; see `droveway.workers.stores`.

        Never the inode: another file system in its place has a root with the same one.
        """
        with self.top() as top:
            return stores.identify(top, self.instances)

    def known_identity(self) -> str:
        """The same, and empty when none was written: nothing is."""
        with self.top() as top:
            return stores.known(top, self.instances)

    def free_bytes(self) -> int:
        """What an ordinary process may still write here."""
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
            os.fchown(file, owner.st_uid, owner.st_gid)  # Nova's own user reads it
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    os.fsync(directory)
