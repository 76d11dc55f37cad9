"""Makes the URLs of cell databases: a cell mapping has the URL itself, or a template of it."""

from __future__ import annotations

import string
import urllib.parse
from typing import Final

from droveway.persistence.database import DatabaseUnusable

PARTS: Final = ("scheme", "username", "password", "hostname", "port", "path", "query", "fragment")


def cell_url(mapped: str, default: str | None, cell: str) -> str:
    """Return the URL of a cell's database from its mapping.

    A mapping with braces is a template, as in Nova: the parts of the URL ``default`` fill it. Raises
    `droveway.persistence.database.DatabaseUnusable`, naming the cell, when it cannot be filled. The error never quotes
    a URL, which may hold a password.
    """
    if "{" not in mapped:
        return mapped
    if not default:
        raise DatabaseUnusable(
            f"the mapping of cell {cell} is a template, and [database] connection, which fills it, is missing: give it "
            "as in nova.conf"
        )
    try:
        wanted = {name for _, name, _, _ in string.Formatter().parse(mapped) if name is not None}
    except ValueError:
        wanted = {""}
    if not wanted <= set(PARTS):
        raise DatabaseUnusable(
            f"the template of cell {cell} cannot be filled: it may name {', '.join(PARTS)} in braces; correct it with "
            "nova-manage cell_v2 update_cell"
        )
    return mapped.format_map(_parts(default))


def _parts(url: str) -> dict[str, str]:
    # The parts stay quoted: a password with a slash in it has to be the same in the new URL.
    split = urllib.parse.urlsplit(url)
    credentials, _, _ = split.netloc.rpartition("@")
    username, _, password = credentials.partition(":")
    where = split.netloc.rpartition("@")[2]
    hostname, port = where, ""
    if not where.endswith("]") and ":" in where:
        hostname, _, port = where.rpartition(":")
    return {
        "scheme": split.scheme,
        "username": username,
        "password": password,
        "hostname": hostname,
        "port": port,
        "path": split.path.removeprefix("/"),
        "query": split.query,
        "fragment": split.fragment,
    }
