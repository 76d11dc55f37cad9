"""Databases that were truncated, swapped with another lab's or restored from an older copy: nothing runs on them."""

from __future__ import annotations

import contextlib
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.labs.operations import Stage, changes, photograph, stage

from droveway.clients.embedded import placement
from droveway.engines.operations.submit import MoveSpec, submit
from droveway.lab import marks
from droveway.lab.layout import Layout

CLOUD = """
cells: {cell1: {hosts: {host1: {}, host2: {}}}}
flavors:
  small: {vcpus: 1, memory_mb: 256, root_gb: 1}
  large: {vcpus: 2, memory_mb: 512, root_gb: 1}
images: {base: {size_mb: 1}}
servers:
  web: {flavor: small, host: host1, image: base, ports: [{}]}
  db: {flavor: small, host: host1, image: base, ports: [{}]}
"""
FILES = {
    "journal": "journal.sqlite",
    "worker": "hosts/host2/worker.sqlite",
    "placement": "placement.sqlite",
    "other worker": "hosts/host1/worker.sqlite",
}
OTHERS = {
    "journal": "UPDATE counters SET value = value + 1 WHERE name = 'incarnation'",
    "worker": "UPDATE notes SET value = value + 1 WHERE name = 'incarnation'",
    "placement": "UPDATE resource_providers SET uuid = substr(uuid, 1, 35) || 'x'",
}
"""What tells another lab's database from this one's."""


@pytest.fixture(scope="module", name="built")
def fixture_built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Stage, dict[str, dict[str, Path]]]]:
    """A lab with one move that waits and one that is unfinished, copies from before, and copies as of another lab."""
    folder = tmp_path_factory.mktemp("restored")
    with stage(folder / "lab", CLOUD) as made:
        made.cli("server", "migrate", "db")
        copies = {"older": copy(made, folder / "older")}
        made.cli("server", "revert", "db")
        made.cli("server", "resize", "web", "--flavor", "large")
        submit(made.lab, MoveSpec(server="db", flavor="large"))
        copies |= {name: copy(made, folder / name) for name in ("newest", "another lab's")}
        for name, change in OTHERS.items():
            with contextlib.closing(sqlite3.connect(copies["another lab's"][name])) as database, database:
                database.execute(change)
        yield made, copies


@pytest.fixture(name="lab")
def fixture_lab(built: tuple[Stage, dict[str, dict[str, Path]]]) -> Iterator[Stage]:
    """The lab, whole again afterwards."""
    made, copies = built
    yield made
    for name in FILES:
        put(made, name, copies["newest"][name])
    shutil.copy(copies["newest"]["marks"], made.lab.layout.marks)


@pytest.fixture(name="copies")
def fixture_copies(built: tuple[Stage, dict[str, dict[str, Path]]]) -> dict[str, dict[str, Path]]:
    return built[1]


def copy(lab: Stage, folder: Path) -> dict[str, Path]:
    """Copies of the databases by name, each whole, and of the marks."""
    folder.mkdir()
    found = {"marks": Path(shutil.copy(lab.lab.layout.marks, folder))}
    for name, file in FILES.items():
        found[name] = folder / name
        with (
            contextlib.closing(sqlite3.connect(lab.root / file)) as source,
            contextlib.closing(sqlite3.connect(found[name])) as target,
        ):
            source.backup(target)
    return found


def put(lab: Stage, name: str, there: Path) -> Path:
    """Put a file in the place of the lab's own."""
    path = lab.root / FILES[name]
    lab.lab.close()
    placement.disconnect(lab.lab.layout.placement)
    # A new file: whoever has the old one open keeps it.
    for ending in ("", "-wal", "-shm"):
        path.with_name(path.name + ending).unlink(missing_ok=True)
    shutil.copy(there, path)
    return path


WRITING = [
    ("server", "confirm", "web"),
    ("server", "migrate", "db"),
    ("move", "resume"),
    ("lab", "server", "delete", "web"),
]


@pytest.mark.parametrize("kind", ["older", "another lab's"])
@pytest.mark.parametrize("name", OTHERS)
def test_a_database_that_is_not_the_last_one_is_named_before_anything_runs(
    lab: Stage, copies: dict[str, dict[str, Path]], name: str, kind: str
) -> None:
    """Every writing command says it in one sentence with the mend and changes nothing; reading ones warn and read."""
    put(lab, name, copies[kind][name])
    before = photograph(lab.root)
    told = {
        "journal": f"the journal {lab.root}/journal.sqlite",
        "worker": "the journal of the worker of host host2",
        "placement": f"the database {lab.root}/placement.sqlite",
    }[name]
    why = "restored from an older copy" if kind == "older" else "another lab"
    for words in WRITING:
        said = lab.refused(*words)
        assert said.startswith(f"droveway: {told} ")
        assert why in said
        assert "droveway db adopt" in said
    assert changes(before, photograph(lab.root)) == []
    assert lab.cli("server", "list")
    assert lab.error.startswith(f"warning: {told} ")


@pytest.mark.parametrize("name", OTHERS)
def test_a_truncated_database_is_named_before_anything_runs(
    lab: Stage, copies: dict[str, dict[str, Path]], tmp_path: Path, name: str
) -> None:
    whole = copies["newest"][name].read_bytes()
    half = tmp_path / "half"
    half.write_bytes(whole[: len(whole) // 2])
    path = put(lab, name, half)
    before = photograph(lab.root)
    for words in (*WRITING, ("db", "adopt")):
        assert f"the database {path} is truncated ({len(whole) // 2} of {len(whole)} " in lab.refused(*words)
    assert "restore it from a copy, then droveway db adopt" in lab.error
    assert changes(before, photograph(lab.root)) == []


@pytest.mark.parametrize("name", ["journal", "worker"])
def test_what_is_adopted_rests_until_a_person_lets_it_go_on(
    lab: Stage, copies: dict[str, dict[str, Path]], name: str
) -> None:
    put(lab, name, copies["older"][name])
    unfinished = [move["id"] for move in lab.json("move", "list") if move["ended"] is None]
    assert len(unfinished) == (2 if name == "worker" else 1)
    said = lab.cli("db", "adopt").splitlines()
    assert said[0].startswith(f"adopted; {len(unfinished)} unfinished move")
    for move in unfinished:
        shown = lab.json("move", "show", move)
        assert (shown["state"], shown["error_code"]) == ("needs-operator", "restored")
        assert lab.json("move", "history", move)[-1]["step"] == "adopt"
    lab.cli("move", "resume")
    assert {lab.json("move", "show", move)["state"] for move in unfinished} <= {"needs-operator"}
    assert lab.error == ""


def test_what_was_adopted_goes_on_when_it_is_retried(lab: Stage, copies: dict[str, dict[str, Path]]) -> None:
    """Steps and epochs are numbered above all that a worker knows: none answers from what it did before."""
    put(lab, "worker", copies["older"]["worker"])
    lab.cli("db", "adopt")
    move = lab.move("db").id
    lab.cli("move", "retry", move)
    assert lab.json("move", "show", move)["state"] == "verifying"
    lab.cli("server", "revert", "db")
    lab.cli("move", "retry", lab.move("web").id)
    lab.assert_balanced()


def test_another_lab_s_placement_is_not_adopted(lab: Stage, copies: dict[str, dict[str, Path]]) -> None:
    put(lab, "placement", copies["another lab's"]["placement"])
    assert "put this lab's own back, then droveway db adopt" in lab.refused("db", "adopt")
    assert "marks.json is corrupt" in _with_marks(lab, "{").refused("move", "resume")


def _with_marks(lab: Stage, text: str) -> Stage:
    lab.lab.layout.marks.write_text(text)
    return lab


def test_after_a_kill_the_workers_still_tell_of_an_older_journal(
    lab: Stage, copies: dict[str, dict[str, Path]]
) -> None:
    """Nothing was written down when everything was killed."""
    put(lab, "journal", copies["older"]["journal"])
    shutil.copy(copies["older"]["marks"], lab.lab.layout.marks)
    assert "the worker of host host1 knows of" in lab.refused("move", "resume")


def test_the_marks_of_a_lab_that_is_as_it_was_left_say_nothing(lab: Stage) -> None:
    lab.cli("move", "list")
    assert lab.error == ""
    assert Layout(lab.root).marks.exists()


def test_a_look_takes_no_lock_from_who_has_a_database_open(tmp_path: Path) -> None:
    """Else another process took itself for the last one, removed the log, and later commits were lost."""
    files = Layout(tmp_path)
    with contextlib.closing(sqlite3.connect(files.journal)) as ours:
        ours.execute("PRAGMA journal_mode=WAL")
        ours.execute("CREATE TABLE seen (number INTEGER)")
        ours.commit()
        with marks.Databases(files, []) as databases:
            assert databases.truncated() == ""
        other = "import sqlite3, sys; db = sqlite3.connect(sys.argv[1]); db.execute('SELECT * FROM seen'); db.close()"
        subprocess.run([sys.executable, "-c", other, str(files.journal)], check=True)
        assert files.journal.with_name(f"{files.journal.name}-wal").exists()
        with ours:
            ours.execute("INSERT INTO seen VALUES (7)")
    with contextlib.closing(sqlite3.connect(files.journal)) as after:
        assert after.execute("SELECT number FROM seen").fetchall() == [(7,)]


def look(lab: Stage) -> marks.Marks:
    """What the databases say, the workers' left out."""
    with marks.Databases(lab.lab.layout, []) as databases:
        return databases.read()


def test_a_look_undoes_what_a_killed_process_had_half_written(lab: Stage) -> None:
    """Else a look after a kill found nothing, and nothing was compared."""
    path = lab.lab.layout.placement
    known = look(lab)
    killed = (
        "import os, sqlite3, sys; db = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "for each in ('PRAGMA cache_size = 1', 'BEGIN', 'DELETE FROM resource_providers',"
        " 'CREATE TABLE half (content)', 'INSERT INTO half VALUES (zeroblob(1000000))'): db.execute(each)\n"
        "os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", killed, str(path)], check=False).returncode == -signal.SIGKILL
    assert path.with_name(f"{path.name}-journal").stat().st_size > 0
    assert known.providers
    assert look(lab) == known


@pytest.mark.parametrize("finished", [True, False])
def test_a_command_that_only_began_may_be_missing_after_a_power_cut(lab: Stage, finished: bool) -> None:
    """Its record is not synced; the record of its result is, and without it the journal is an older one."""
    files, hosts = lab.lab.layout, lab.lab.identity.hosts
    known = files.marks.read_bytes()
    row = (
        "flow.step.execute.1",
        "move",
        "server",
        "step",
        "stop_guest",
        "execute",
        1,
        0.0,
        b"{}" if finished else None,
    )
    with contextlib.closing(sqlite3.connect(files.worker("host1"))) as database:
        with database:
            names = "key, move, server, step, action, direction, epoch, begun, result"
            database.execute(f"INSERT INTO commands ({names}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
        with marks.Databases(files, hosts) as databases:
            databases.record()
        with database:
            database.execute("DELETE FROM commands WHERE key = ?", row[:1])
    with marks.Databases(files, hosts) as databases:
        assert ("was restored from an older copy" in databases.contradiction()) == finished
    files.marks.write_bytes(known)


def test_what_cannot_be_read_keeps_its_mark(lab: Stage) -> None:
    """A mark without the journal's numbers would call the lab's own journal another one's ever after."""
    before = lab.lab.layout.marks.read_bytes()
    with contextlib.closing(sqlite3.connect(lab.lab.layout.journal)) as database, database:
        database.execute("ALTER TABLE counters RENAME TO gone")
    with marks.Databases(lab.lab.layout, lab.lab.identity.hosts) as databases:
        databases.record()
    assert lab.lab.layout.marks.read_bytes() == before
