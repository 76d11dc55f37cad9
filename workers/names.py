"""Renames entries of open directories without ever replacing an entry that is there."""

from __future__ import annotations

import ctypes
import errno
import logging
import os
from typing import Final

from droveway.outages import Once

LOG = logging.getLogger(__name__)

_NOREPLACE: Final = 1
_NO_FLAGS: Final = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_NOTICES: Final = Once(LOG)


def rename(old_directory: int, old: str, new_directory: int, new: str) -> None:
    """Rename in one atomic call, unless the new name is taken; raises FileExistsError then, and OSError.

    A plain rename would replace an empty directory or a file.  Some file systems (NFS) know only the plain rename.
    There the function first looks whether the name is free and then renames, and the worker's log says so once.
    """
    if _LIBC.renameat2(old_directory, os.fsencode(old), new_directory, os.fsencode(new), _NOREPLACE) == 0:
        return
    code = ctypes.get_errno()
    if code not in _NO_FLAGS:
        raise OSError(code, os.strerror(code), old, None, new)
    _NOTICES.log_once(
        "Directories are renamed without protection against a name that is taken at the same moment",
        "their file system knows no rename that fails when the new name exists",
    )
    if _is_there(new_directory, new):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), new)
    os.rename(old, new, src_dir_fd=old_directory, dst_dir_fd=new_directory)


def _is_there(directory: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True
