"""Checks who may read a configuration file that holds passwords.

It also names the option groups of databases, which a worker's file should not have: they hold passwords.
"""

from __future__ import annotations

import getpass
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from oslo_config import cfg

from droveway.errors import Refused

DATABASES: Final = ("journal", "api_database", "database")
"""The option groups of the databases, such as ``[journal]``. A worker uses none of them."""

_NAMES: Final = re.compile(r"password|passphrase|secret|token", re.IGNORECASE)
_IN_URL: Final = re.compile(r"://[^/@\s]*:[^/@\s]+@")
_OTHERS: Final = stat.S_IROTH | stat.S_IWOTH


def require_readable(path: Path) -> None:
    """Raise `droveway.errors.Refused` when this process may not read the file."""
    if not os.access(path, os.R_OK):
        raise Refused(
            f"the configuration {path} may not be read by {getpass.getuser()}: run the command as root, or as a member "
            "of the group that the file belongs to"
        )


def require_private(path: Path) -> None:
    """Raise `droveway.errors.Refused` when the file holds passwords and others may read or change it."""
    if (why := exposed(path)) is not None:
        raise Refused(f"{why}: chown root:droveway {path} && chmod 640 {path}")


def exposed(path: Path) -> str | None:
    """Return why others than the file's owner and group have its passwords; None when they do not."""
    mode = path.stat().st_mode
    if not mode & _OTHERS:
        return None
    held = next(secrets(path), None)
    if held is None:
        return None
    can = "read" if mode & stat.S_IROTH else "change"
    return f"the configuration {path} holds passwords ({held}) and everybody on this machine may {can} it"


def secrets(path: Path) -> Iterator[str]:
    """Yield the options of the file that hold a password, as ``[group] option``; never their values."""
    sections: dict[str, dict[str, list[str]]] = {}
    cfg.ConfigParser(str(path), sections).parse()
    for group, options in sections.items():
        for option, values in options.items():
            if any(values) and (_NAMES.search(option) or any(map(_IN_URL.search, values))):
                yield f"[{group}] {option}"
