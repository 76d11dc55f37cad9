"""How a full run of the two faults is cut into shards, and the verdict on each that is kept in the repository.

Nothing here decides whether a point holds, so none of it counts for the digest: see `Code`.
"""

from __future__ import annotations

import ast
import collections
import configparser
import dataclasses
import datetime as dt
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
KEPT: Final = Path("tests", "matrices")
"""Where verdicts are kept, below the checkout."""

SIZES: Final[Mapping[str, int]] = {"restores": 600, "sleeps": 900, "others": 600, "deaths": 300, "strangers": 1200}
"""Points of a shard, by kind: about ten minutes of one processor."""

SHARED: Final[Mapping[str, slice]] = {
    "restores": slice(0, 2),
    "sleeps": slice(0, 5),
    "others": slice(3, 4),
    "deaths": slice(0, 1),
    "strangers": slice(0, 1),
}
"""Which words of a point's name, by kind, name the recording or the lab that it shares with other points."""


@dataclasses.dataclass(frozen=True)
class Shard:
    """So many points of one kind as are run at once."""

    kind: str
    number: int
    points: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.kind} {self.number:02}"

    @property
    def file(self) -> Path:
        """Where its verdict is kept, below the checkout."""
        return KEPT / self.kind / f"{self.number:02}.json"


def cut(kind: str, points: Iterable[str], size: int | None = None) -> list[Shard]:
    """Every point in exactly one shard of about ``size`` points, numbered from 1.

    Points that share a recording stay together and in their order.  Only those of a recording that has more than a
    shard may hold come in several, all about as large.
    """
    most = size or SIZES[kind]
    shards: list[list[str]] = [[]]
    for alike in _alike(kind, points):
        if len(shards[-1]) + len(alike) > most and shards[-1]:
            shards.append([])
        parts = max(1, round(len(alike) / most))
        each = -(-len(alike) // parts)
        shards[-1] += alike[:each]
        shards += [alike[start : start + each] for start in range(each, len(alike), each)]
    return [Shard(kind, number, tuple(found)) for number, found in enumerate(shards, 1) if found]


def _alike(kind: str, points: Iterable[str]) -> list[list[str]]:
    found: dict[tuple[str, ...], list[str]] = collections.defaultdict(list)
    for point in points:
        found[tuple(point.split(":")[SHARED.get(kind, slice(0, 1))])].append(point)
    return list(found.values())


class Code:
    """The code that a point runs: all Python of the product, the makers and judges of points, and what they import."""

    def __init__(self, root: Path = ROOT) -> None:
        self.root = root

    def digest(self, shard: Shard) -> str:
        """Of the code as it stands now, and of the names of the shard's points."""
        told = hashlib.sha256()
        for path in sorted(self.files()):
            told.update(f"{path.relative_to(self.root)} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
        told.update("\n".join((shard.kind, *shard.points)).encode())
        return told.hexdigest()

    def files(self) -> set[Path]:
        """Every file that counts."""
        return {path for folder in self._packages() for path in folder.glob("*.py")} | self._judges()

    def _packages(self) -> Iterator[Path]:
        """The folders that setup.cfg names: a module that is not yet tracked is imported as well."""
        metadata = configparser.ConfigParser()
        metadata.read(self.root / "setup.cfg", encoding="utf-8")
        for package in metadata["options"]["packages"].split():
            yield self.root.joinpath(*package.split(".")[1:])

    def _judges(self) -> set[Path]:
        tests = self.root / "tests"
        found: set[Path] = set()
        left = [*tests.joinpath("support", "two_faults").glob("*.py")]
        while left:
            path = left.pop()
            if path not in found:
                found.add(path)
                left += _imported(path, tests)
        return found


def _imported(path: Path, tests: Path) -> Iterator[Path]:
    """The modules of ``tests/support`` and ``tests/proofs`` that the one in ``path`` imports anywhere."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for name in names:
            found = tests.joinpath(*name.split(".")).with_suffix(".py")
            if name.startswith(("support.", "proofs.")) and found.is_file():
                yield found


@dataclasses.dataclass(frozen=True)
class Verdict:
    """That all points of a shard held."""

    digest: str
    points: int
    seconds: int
    date: str


def kept(root: Path, shard: Shard) -> Verdict | None:
    """The verdict on the shard, of whatever code it is; None when there is none that can be read."""
    try:
        told = json.loads((root / shard.file).read_bytes())
        return Verdict(str(told["digest"]), int(told["points"]), int(told["seconds"]), str(told["date"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def keep(root: Path, shard: Shard, digest: str, seconds: float) -> None:
    """Keep the verdict that all points of the shard held."""
    path = root / shard.file
    path.parent.mkdir(parents=True, exist_ok=True)
    today = dt.datetime.now(dt.UTC).date().isoformat()
    told = Verdict(digest, len(shard.points), round(seconds), today)
    path.write_text(json.dumps(dataclasses.asdict(told), indent=1) + "\n", encoding="utf-8")


def drop(root: Path, shard: Shard) -> None:
    """Keep no verdict on the shard any more."""
    (root / shard.file).unlink(missing_ok=True)


def drop_others(root: Path, kind: str, shards: Sequence[Shard]) -> None:
    """Keep no verdict of the kind but those on these shards: today's points are cut into fewer ones."""
    known = {root / shard.file for shard in shards}
    for path in (root / KEPT / kind).glob("*.json"):
        if path not in known:
            path.unlink()
