"""One small lab for tests: built once, put back before each use, and looked at as a whole."""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from droveway.engines.operations import hosts, shelving
from droveway.engines.operations.submit import MoveSpec, submit
from droveway.flows import registry
from droveway.lab import books, cloud, stopped
from droveway.lab.layout import Layout
from droveway.lab.session import Lab
from droveway.persistence.journal import kinds, moves, requests
from droveway.persistence.journal.states import State
from droveway.persistence.journal.tables import Claim, Daemon, Move, MoveStep
from droveway.workers.daemon import Worker

SERVER: Final = "web"

CHILD_SECONDS: Final = 90

_HOSTS: Final = "{vcpus: 8, memory_mb: 2048, disk_gb: 10}"


def small_cloud(*hosts: str, image_mb: int = 1, attempts: int = 3) -> cloud.Cloud:
    """One cell with these hosts and one server, on the first of them, with a port and a volume."""
    text = f"""
options: {{max_attempts: {attempts}}}
cells: {{cell1: {{hosts: {{{", ".join(f"{host}: {_HOSTS}" for host in hosts)}}}}}}}
flavors:
  small: {{vcpus: 1, memory_mb: 256, root_gb: 1}}
  large: {{vcpus: 2, memory_mb: 512, root_gb: 1, swap_mb: 1}}
images: {{base: {{size_mb: {image_mb}}}}}
servers:
  {SERVER}: {{flavor: small, host: {hosts[0]}, image: base, ports: [{{}}], volumes: [{{size_gb: 1}}]}}
"""
    return cloud.parse_cloud(text, "small")


def file_flow(lab: Lab, kind: str, *, keep_image: bool = False, to_cell: str | None = None) -> str:
    """Ask for the server's resize, cold migrate, shelve or unshelve, or for the end of its waiting move; the move.

    It is unshelved on the second host, wherever that is.
    """
    record = kinds.of(kind)
    if record.begins_offloaded:
        return shelving.unshelve(lab, SERVER, host="host2").id
    if kind == kinds.SHELVE.name:
        return shelving.shelve(lab, SERVER).id
    if not record.ends_wait:
        flavor = "large" if record.changes_flavor else None
        return submit(lab, MoveSpec(server=SERVER, flavor=flavor, keep_image=keep_image, to_cell=to_cell)).id
    with lab.journal.write() as session:
        move = moves.open_moves(session)[0]
        requests.end_wait(session, move, registry.reference(kind))
        return move.id


def lose(lab: Lab, worker: Worker) -> None:
    """Let the worker's host die for good, which a person declares down."""
    worker.stop()
    stopped.stop(lab.layout, worker.host)
    hosts.declare_down(lab, worker.host, reason="its power is off")


def read_move(lab: Lab, move_id: str) -> Move:
    """The move as it is now."""
    with lab.journal.read() as session:
        return moves.get(session, move_id)


def history(lab: Lab, move_id: str) -> list[MoveStep]:
    """Every run of every step."""
    with lab.journal.read() as session:
        return moves.history(session, move_id)


def is_released(lab: Lab, move_id: str) -> bool:
    """Whether nobody runs the move, and nobody is to."""
    with lab.journal.read() as session:
        claim = session.scalar(sa.select(Claim).where(Claim.move_id == move_id))
        return moves.get(session, move_id).flow_uuid is None and claim is not None and claim.released_at is not None


def is_idle(lab: Lab) -> bool:
    """Whether nobody runs any move, and nobody is to."""
    held = sa.select(Claim.move_id).where(Claim.released_at.is_(None))
    wanted = sa.and_(Move.flow_uuid.is_not(None), Move.state != State.NEEDS_OPERATOR)
    with lab.journal.engine.connect() as connection:
        return connection.scalar(sa.select(Move.id).where(sa.or_(wanted, Move.id.in_(held))).limit(1)) is None


def assert_balanced(lab: Lab) -> None:
    """The audit finds nothing, and notes no more than calls that may have been late."""
    report = books.balance(lab)
    assert report.clean, "; ".join(f"{each.kind} {each.subject}: {each.detail}" for each in report.findings)


def until(condition: Callable[[], Any], what: str, seconds: float = 180.0) -> Any:
    """Wait for the condition, and return what it says; fails when it does not come."""
    ends = time.monotonic() + seconds
    pause = threading.Event()
    while not (value := condition()):
        assert time.monotonic() < ends, f"{what} did not come within {seconds:g} s"
        pause.wait(0.01)
    return value


def picture(files: Layout) -> dict[str, object]:
    """Read every row of every database and every file of the hosts.

    An intent that is open counts as late.  The moment of a daemon's last beat is left out: it beats whatever happens.
    """
    seen: dict[str, object] = {}
    for path in sorted(files.root.rglob("*.sqlite")):
        seen |= {f"{path.relative_to(files.root)}:{table}": rows for table, rows in _tables(path).items()}
    for path in sorted([*files.hosts.rglob("*"), *files.volumes.rglob("*")]):
        if ".sqlite" not in path.name:
            facts = path.lstat()
            # Whoever reads the journal of a host's worker makes and removes files beside it.
            written_at = None if path.parent == files.hosts else facts.st_mtime_ns
            seen[str(path.relative_to(files.root))] = (facts.st_mode, facts.st_size, facts.st_ino, written_at)
    seen["guests"] = files.guests_log.read_text()
    return seen


def differences(old: dict[str, object], new: dict[str, object]) -> list[str]:
    """What two pictures do not agree on."""
    changed = (key for key in sorted({*old, *new}) if old.get(key) != new.get(key))
    return [f"{key}: {old.get(key)!r} -> {new.get(key)!r}" for key in changed]


def _tables(path: Path) -> dict[str, list[Any]]:
    database = sqlite3.connect(path)
    try:
        names = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        rows = {name: sorted(map(repr, database.execute(f'SELECT * FROM "{name}"'))) for name in names}
        if "daemons" in rows:
            columns = [column.name for column in Daemon.__table__.columns if column.name != "seen_at"]
            rows["daemons"] = sorted(map(repr, database.execute(f"SELECT {', '.join(columns)} FROM daemons")))
    finally:
        database.close()
    if "intents" in rows:
        rows["intents"] = [row.replace("'open'", "'late'") for row in rows["intents"]]
    return rows


def in_child(work: Callable[[], None], seconds: int = CHILD_SECONDS) -> None:
    """Do the work in a forked process, whose connections and threads end with it; fails as the work fails."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(seconds)
        code = 1
        try:
            work()
            code = 0
        except BaseException:  # noqa: BLE001 - the parent raises it
            os.write(writing, traceback.format_exc().encode()[-60000:])
        finally:
            sys.stdout.flush()
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read().decode()
    _, status = os.waitpid(pid, 0)
    assert status == 0, said or f"the child ended with status {status}"
