"""How moves come to rest: for each code what really happens, and what a person does then.

Each cause breaks the world at one boundary of a step, and stays in force until it is mended.  What is broken is the
world itself: files of hosts, rows, services, workers, guests.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import sqlalchemy as sa
from keystoneauth1 import exceptions
from support.labs.operations import Stage, Workers

from droveway.persistence.nova import api
from droveway.persistence.nova.cell import Instance, InstanceExtra, Migration

UNDO, FORWARD, REVERT = "undo", "forward", "revert"
STOPPED, RUNNING = "web", "live"
BLOCK: Final = 4096
"""A guest writes into the first block of its disk."""

MANIFEST: Final = "droveway-manifest.json"
OTHER: Final = "1d2b7c55-0000-4a63-8d4e-2a0f2a0c9b03"


class Broken:
    """A lab in which something is broken: it does, and later undoes, what is asked of it."""

    def __init__(self, lab: Stage, workers: Workers) -> None:
        self.lab, self.workers = lab, workers
        self.mends: list[Callable[[], object]] = []

    def mend(self) -> None:
        """Put everything back, last first."""
        while self.mends:
            self.mends.pop()()

    def hide(self, path: Path) -> Path:
        """Take a file or a directory away."""
        hidden = path.rename(path.with_name(f".{path.name}.hidden"))
        self.mends.append(lambda: hidden.rename(path))
        return hidden

    def write(self, path: Path, data: bytes) -> None:
        """Put other bytes in a file's place."""
        was = path.read_bytes()
        path.write_bytes(data)
        self.mends.append(lambda: path.write_bytes(was))

    def row(self, table: Any, where: Any, **values: Any) -> None:
        """Write columns of a cell's row as somebody else does, and put back what was there."""
        with self.lab.lab.cell_databases["cell1"].write() as session:
            found = session.execute(sa.select(*(getattr(table, name) for name in values)).where(where)).one()
            session.execute(sa.update(table).where(where).values(**values))

        def back() -> None:
            with self.lab.lab.cell_databases["cell1"].write() as session:
                session.execute(sa.update(table).where(where).values(**found._asdict()))

        self.mends.append(back)

    def answer(self, client: Any, status: int | None) -> None:
        """Let a service answer with this status, or let nobody find it."""

        def request(*_words: Any, **_options: Any) -> Any:
            if status is None:
                raise exceptions.EndpointNotFound("no endpoint of the service is in the catalog")
            told = {"error": {"message": "the policy does not allow it"}}
            return SimpleNamespace(status_code=status, json=lambda: told, text=json.dumps(told))

        rest = client._rest
        adapter, rest._adapter = rest._adapter, SimpleNamespace(request=request)

        def back() -> None:
            rest._adapter = adapter

        self.mends.append(back)


@dataclasses.dataclass(frozen=True)
class Cause:
    """One code: where the world breaks, how, and in which operation."""

    at: str
    """The step before which it breaks."""
    breaks: Callable[[Broken], object]
    way: str = UNDO
    server: str = STOPPED


def _away(broken: Broken) -> None:
    broken.workers.stop("host1")
    broken.mends.append(lambda: broken.workers.start("host1"))


def _unmount(broken: Broken) -> None:
    instances = broken.lab.lab.layout.host("host1") / "instances"
    broken.hide(instances)
    instances.mkdir()

    def back() -> None:
        # What the worker made of the empty directory goes first.
        for path in instances.iterdir():
            path.unlink()
        instances.rmdir()

    broken.mends.append(back)


def _aside(broken: Broken) -> Path:
    return broken.lab.directory("host1", STOPPED, "_resize")


def _in_the_way(broken: Broken) -> None:
    own = broken.lab.directory("host1", STOPPED)
    own.mkdir()
    (own / "somebody's").write_bytes(b"x")
    broken.mends.append(own.rmdir)
    broken.mends.append((own / "somebody's").unlink)


def _link(broken: Broken) -> None:
    hidden = broken.hide(_aside(broken))
    _aside(broken).symlink_to(hidden)
    broken.mends.append(_aside(broken).unlink)


def _of_another_move(broken: Broken) -> None:
    manifest = _aside(broken) / MANIFEST
    known = json.loads(manifest.read_bytes())
    broken.write(manifest, json.dumps({**known, "move": OTHER}).encode())


def _start_by_hand(broken: Broken) -> None:
    server, hypervisor = broken.lab.id_of(STOPPED), broken.lab.lab.hypervisor("host2")
    hypervisor.start(server, lambda: None)
    broken.mends.append(lambda: hypervisor.stop(server, grace=0.0, fence=lambda: None))


def _start_on_source(broken: Broken) -> None:
    """A person brings back what was set aside and starts it; what the guest wrote there is taken back when it stops."""
    server, hypervisor = broken.lab.id_of(RUNNING), broken.lab.lab.hypervisor("host1")
    aside, own = broken.lab.directory("host1", RUNNING, "_resize"), broken.lab.directory("host1", RUNNING)
    disk = aside / "disk"
    facts, first = disk.stat(), disk.read_bytes()[:BLOCK]

    def back() -> None:
        hypervisor.stop(server, grace=0.0, fence=lambda: None)
        own.rename(aside)
        with disk.open("r+b") as file:
            file.write(first)
        os.utime(disk, ns=(facts.st_atime_ns, facts.st_mtime_ns))

    broken.mends.append(back)
    aside.rename(own)
    hypervisor.start(server, lambda: None)


def _forget_spec(broken: Broken) -> None:
    """Nova's own archiving has taken it, as it does with what it counts as deleted."""
    table, server = api.RequestSpec.__table__, broken.lab.id_of(STOPPED)
    assert isinstance(table, sa.Table)
    with broken.lab.lab.api.write() as session:
        row = dict(session.execute(sa.select(table).where(table.c.instance_uuid == server)).mappings().one())
        session.execute(table.delete().where(table.c.instance_uuid == server))

    def back() -> None:
        with broken.lab.lab.api.write() as session:
            session.execute(table.insert().values(**row))

    broken.mends.append(back)


def _server(broken: Broken, table: Any = Instance, name: str = STOPPED) -> Any:
    column = table.uuid if table is Instance else table.instance_uuid
    return sa.and_(column == broken.lab.id_of(name), table.deleted == 0)


def _definitions_are_no_directory(broken: Broken) -> None:
    domains = broken.lab.lab.layout.host("host2") / "domains"
    broken.hide(domains)
    os.close(os.open(domains, os.O_CREAT | os.O_WRONLY))
    broken.mends.append(domains.unlink)


CAUSES: Final[dict[str, Cause]] = {
    "host-unreachable": Cause("set_aside", _away),
    "storage-away": Cause("set_aside", _unmount),
    "in-the-way": Cause("set_aside", _in_the_way),
    "link": Cause("set_aside", _link),
    "damaged": Cause("set_aside", lambda broken: broken.write(_aside(broken) / MANIFEST, b"{")),
    "last-copy": Cause("copy_disks", lambda broken: broken.hide(_aside(broken))),
    "foreign": Cause("set_aside", _of_another_move),
    "guest-runs": Cause("define_guest", _start_by_hand),
    "io": Cause("define_guest", _definitions_are_no_directory),
    "network-unavailable": Cause("move_ports", lambda broken: broken.answer(broken.lab.lab.cloud.network, None)),
    "network-failed": Cause("move_ports", lambda broken: broken.answer(broken.lab.lab.cloud.network, 403)),
    "volume-unavailable": Cause("move_volumes", lambda broken: broken.answer(broken.lab.lab.cloud.volumes, None)),
    "volume-failed": Cause("move_volumes", lambda broken: broken.answer(broken.lab.lab.cloud.volumes, 403)),
    "placement-unavailable": Cause(
        "return_allocation", lambda broken: broken.answer(broken.lab.lab.cloud.placement, None), REVERT
    ),
    "placement-failed": Cause(
        "return_allocation", lambda broken: broken.answer(broken.lab.lab.cloud.placement, 403), REVERT
    ),
    "bad-object": Cause(
        "finish_records",
        lambda broken: broken.row(InstanceExtra, _server(broken, InstanceExtra), flavor="no flavor"),
        FORWARD,
    ),
    "not-found": Cause("save_request_spec", _forget_spec, FORWARD),
    "conflict": Cause(
        "finish_records",
        lambda broken: broken.row(Migration, Migration.uuid == broken.lab.move(STOPPED).id, status="migrating"),
        FORWARD,
    ),
    "not-this-moves": Cause(
        "start_guest",
        lambda broken: broken.row(Instance, _server(broken, name=RUNNING), host="host3", node="host3"),
        FORWARD,
        RUNNING,
    ),
    "runs-elsewhere": Cause("start_guest", _start_on_source, FORWARD, RUNNING),
}
"""Every cause that a lab can have without much ado."""
