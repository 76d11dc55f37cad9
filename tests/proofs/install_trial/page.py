"""The commands of the pages that tools/install-trial follows, with the machines that they are for."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Final, NamedTuple

PAGE: Final = Path(__file__).parents[3] / "docs" / "install.rst"
ENSEMBLE: Final = PAGE.with_name("three-zookeepers.rst")
MACHINES: Final = ("administrator", "conductor", "host", "zookeeper", "zk2", "zk3", "database")
DATABASES: Final = ("mariadb", "postgresql")

_TITLE: Final = re.compile(r"^(.+)\n(=+)$", re.MULTILINE)
_BLOCK: Final = re.compile(
    r"^(?:\.\. on: (?P<machines>.+?)(?: with (?P<database>\w+))?\n)?"
    r"\.\. code-block:: sh\n\n(?P<text>(?:(?: {3}.*)?\n)+)",
    re.MULTILINE,
)


class Block(NamedTuple):
    """One block of commands."""

    line: int
    """The page's line on which its first command stands."""
    section: str
    """The title that it stands below."""
    machines: tuple[str, ...]
    database: str | None
    """The make of database server that it is for; None: any."""
    text: str


def blocks(page: str) -> list[Block]:
    """Return the page's blocks of commands, in order; raises ValueError for one that names no machine, or another."""
    found = []
    for match in _BLOCK.finditer(page):
        line = page.count("\n", 0, match.start("text")) + 1
        machines = tuple((match["machines"] or "").split())
        if not machines or not {*machines} <= {*MACHINES}:
            raise ValueError(
                f"line {line}: say above the block which machine it is for: .. on: {' or '.join(MACHINES)}"
            )
        if match["database"] not in (None, *DATABASES):
            raise ValueError(f"line {line}: {match['database']} is none of {', '.join(DATABASES)}")
        titles = _TITLE.findall(page, 0, match.start())
        section = titles[-1][0] if titles else ""
        found.append(
            Block(line, section, machines, match["database"], textwrap.dedent(match["text"]).strip("\n") + "\n")
        )
    return found
