"""Copies of a lab that is under way, and putting them back: a flow is run once, and a fault planted many times."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import sqlite3
import subprocess
from collections.abc import Collection
from pathlib import Path
from typing import Final

from support.labs import snapshot
from support.two_faults import world

from droveway.lab.session import Lab

TRIES: Final = 20
"""So often is a lab copied before that has failed."""


@dataclasses.dataclass(frozen=True)
class Copy:
    """A lab as it was at one moment, with the guests that ran then."""

    root: Path
    kept: Path
    running: tuple[tuple[str, str], ...]
    starts: tuple[tuple[str, str, str], ...]
    """(host, server, text) of every count of starts: putting a guest back is none."""

    def put_back(self) -> Lab:
        """The lab as it was then, its guests running."""
        lab = snapshot.Snapshot(self.root, self.kept, self.running).restore()
        for host, server, text in self.starts:
            (self.root / "hosts" / host / "domains" / f"{server}.starts").write_text(text)
        return lab


def keep(root: Path, kept: Path) -> Copy:
    """Copy the lab, whose guests go on; nobody writes meanwhile but through SQLite."""
    _copy(root, kept)
    for path in sorted(root.rglob("*.sqlite")):
        target = kept / path.relative_to(root)
        for ending in ("", "-wal", "-shm", "-journal"):
            target.with_name(target.name + ending).unlink(missing_ok=True)
        copy_database(path, target)
    servers = {row["uuid"] for row in world.cell_rows(root, "instances")}
    running = tuple((host, server) for server in sorted(servers) for host in world.running_on(root, server))
    starts = tuple(
        (host, path.stem, path.read_text())
        for host in world.hosts(root)
        for path in sorted((root / "hosts" / host / "domains").glob("*.starts"))
    )
    return Copy(root, kept, running, starts)


def _copy(root: Path, kept: Path) -> None:
    """Copy all files; raises OSError with what cp says when it fails again and again.

    A file that is replaced meanwhile has another name for a moment, which cp has seen and then no longer finds.
    """
    said = ""
    for _ in range(TRIES):
        shutil.rmtree(kept, ignore_errors=True)
        kept.mkdir(parents=True)
        done = subprocess.run(
            ["/bin/cp", "-a", "--sparse=always", "--reflink=auto", f"{root}/.", str(kept)],
            check=False,
            capture_output=True,
            text=True,
        )
        if done.returncode == 0:
            return
        said = done.stderr
    raise OSError(said)


def copy_database(source: Path, target: Path) -> None:
    """A whole copy of a database that may be in use, in one file."""
    with (
        contextlib.closing(sqlite3.connect(f"file:{source}?mode=rw", uri=True)) as reading,
        contextlib.closing(sqlite3.connect(target)) as writing,
    ):
        reading.backup(writing)


def restore_database(source: Path, target: Path) -> None:
    """Put a copy in a database's place, in a new file: nobody has the lab open."""
    for ending in ("", "-wal", "-shm", "-journal"):
        target.with_name(target.name + ending).unlink(missing_ok=True)
    shutil.copyfile(source, target)


def restore_tables(source: Path, target: Path, tables: Collection[str]) -> None:
    """Put a copy's rows of these tables in the place of those that a database has."""
    with contextlib.closing(sqlite3.connect(target)) as writing:
        writing.execute("ATTACH ? AS kept", (str(source),))
        for table in tables:
            writing.execute(f"DELETE FROM main.{table}")
            writing.execute(f"INSERT INTO main.{table} SELECT * FROM kept.{table}")
        writing.commit()


def stamp(root: Path, servers: Collection[str]) -> None:
    """Write bytes into each disk of the servers that no other disk has, so that copies can be told apart."""
    for server in servers:
        for folder in world.folders(root, server):
            for path in sorted(folder.iterdir()):
                if world.is_disk(path):
                    with path.open("r+b") as file:
                        file.seek(world.BLOCK * 16)
                        file.write(f"{server} {path.name}".encode())
