"""Makes the rows of one server and of the move that takes it from host1 to host2, in a cell and a journal.

Tests ask of them what steps and engines decide by rows alone.  There is no host: a test sets what one says.
"""

from __future__ import annotations

import datetime as dt
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

import msgspec
import sqlalchemy as sa
from sqlalchemy import orm

from droveway.clients.network import PortRecord
from droveway.flows import registry
from droveway.flows.before import Before, PortBefore, VolumeBefore, as_json
from droveway.flows.run import Context, Run
from droveway.flows.stands import Shown
from droveway.persistence.database import Database, sqlite_url
from droveway.persistence.journal import step_runs
from droveway.persistence.journal import tables as journal
from droveway.persistence.journal.step_runs import StepRun
from droveway.persistence.journal.tables import Move, MoveAttempt, MoveStep
from droveway.persistence.nova import base as nova_base
from droveway.persistence.nova import objects
from droveway.persistence.nova.cell import BlockDeviceMapping, Instance, InstanceExtra, Migration
from droveway.persistence.nova.cells import Cells
from droveway.wire.commands import DiskInfo, GuestState
from droveway.wire.values import Direction

CELL: Final = "cell1"
SERVER: Final = "5b0b9cb5-2ee8-4b0d-9e2c-6b2d60f6ad01"
MOVE: Final = "9f3c8a10-77aa-4a63-8d4e-2a0f2a0c9b02"
FLOW: Final = "c0ffee00-77aa-4a63-8d4e-2a0f2a0c9b04"
VOLUME: Final = "0b1e7c55-0000-4a63-8d4e-2a0f2a0c9b05"
ATTACHMENT: Final = "0b1e7c55-0000-4a63-8d4e-2a0f2a0c9b06"
PORT: Final = "0b1e7c55-0000-4a63-8d4e-2a0f2a0c9b07"
SOURCE, DESTINATION = "host1", "host2"
EPOCH: Final = 1
MIB: Final = 1 << 20
NOW: Final = dt.datetime(2026, 1, 1)  # noqa: DTZ001 - the databases' times have no zone
FLAVOR: Final = {"nova_object.name": "Flavor", "nova_object.namespace": "nova", "nova_object.version": "1.2"} | {
    "nova_object.data": {"id": 1, "vcpus": 1, "memory_mb": 256, "root_gb": 1, "ephemeral_gb": 0, "swap": 0}
}


def disk(name: str, size: int) -> DiskInfo:
    """Describe one raw disk of ``size`` bytes."""
    return DiskInfo(name=name, format="raw", virtual_size=size, allocated=size)


def guest(*disks: DiskInfo, **facts: Any) -> GuestState:
    """Build a host's answer about the server: by default its guest is defined there, off and never started."""
    known: dict[str, Any] = {"defined": True, "running": False, "starts": 0, "definition": "{}", "move": ""}
    return GuestState(**known | {"set_aside": False, "disks": list(disks)} | facts)


def record(**facts: Any) -> Before:
    """Build what the journal records of the server before its move: one disk and swap, one volume, one port."""
    known: dict[str, Any] = {
        "user_id": "u",
        "project_id": "p",
        "vm_state": "active",
        "power_state": 1,
        "availability_zone": "nova",
        "node": SOURCE,
        "compute_id": 1,
        "image_ref": "",
        "boot_from_volume": False,
        "launched_at": None,
        "old_flavor": FLAVOR,
        "new_flavor": FLAVOR,
        "request_spec": "{}",
        "volumes": [VolumeBefore(volume=VOLUME, attachment=ATTACHMENT, device="/dev/vdb", boot=False)],
        "ports": [PortBefore(port=PORT, mac="fa:16:3e:00:00:01", profile={}, device_owner="compute:nova")],
        "guest": guest(disk("disk", 5 * MIB), disk("disk.swap", MIB)),
    }
    return Before(**known | facts)


class Moving:
    """Holds the rows, and answers all that a step asks of its run; it writes each command down."""

    def __init__(self, folder: Path, kind: str = "migrate") -> None:
        self.kind, self.move_id, self.flow_uuid, self.epoch = kind, MOVE, FLOW, EPOCH
        self.asked_as = self.flow_uuid
        self.version: int | None = None
        """The version of the flow's graph; None for the newest."""
        self.journal = _made(folder, "journal", journal.JournalBase.metadata)
        self.cell = _made(folder, "cell", nova_base.CellBase.metadata)
        self.cells = Cells({CELL: self.cell})
        self.row = Move(
            id=MOVE,
            kind="migrate",
            server=SERVER,
            server_name="web",
            state="running",
            policy="manual",
            old_flavor="small",
            new_flavor="small",
            source_cell=CELL,
            source_host=SOURCE,
            dest_host=DESTINATION,
            storage="copy",
            attempt=1,
            before=as_json(record()),
            delete_requested=False,
            created_at=NOW,
            updated_at=NOW,
        )
        self.chosen: MoveAttempt | None = MoveAttempt(
            move_id=MOVE, attempt=1, cell=CELL, host=DESTINATION, node=DESTINATION, provider="p", request={}
        )
        self.says: dict[str, GuestState] = {}
        """Host → what it says of the server."""
        self.commands: list[tuple[str, str, str]] = []
        """Host, action and direction of each command that is no question."""
        self.told: list[Any] = []
        """Details of each of these commands."""
        self.down: set[str] = set()
        self.ports = [
            PortRecord(
                id=PORT,
                mac="fa:16:3e:00:00:01",
                host="",
                profile={},
                device_owner="compute:nova",
                server=SERVER,
                bindings={},
            )
        ]
        network = SimpleNamespace(ports=lambda _server: self.ports, listed_ports=lambda _server: self.ports)
        self.held: list[Any] = []
        """What Cinder has of the server's attachments."""
        volumes = SimpleNamespace(attachments=lambda _volume: self.held)
        self.cloud = SimpleNamespace(network=network, volumes=volumes)
        with self.journal.write() as session:
            session.add(self.row)
        with self.cell.write() as session:
            session.add(Instance(uuid=SERVER, display_name="web", deleted=0))
            session.flush()
            slots = {"cur": FLAVOR, "old": FLAVOR, "new": FLAVOR}
            session.add(InstanceExtra(instance_uuid=SERVER, flavor=objects.encode(slots), deleted=0))
            session.add(
                BlockDeviceMapping(
                    instance_uuid=SERVER,
                    volume_id=VOLUME,
                    attachment_id=ATTACHMENT,
                    device_name="/dev/vdb",
                    destination_type="volume",
                    deleted=0,
                )
            )
        self.place(SOURCE, "resize_migrated", "migrating")
        self.cells.raise_fence(CELL, SERVER, EPOCH)

    @property
    def shown(self) -> Shown:
        """Return what the rows show of the steps of the flow's graph."""
        graph = registry.latest(self.kind) if self.version is None else registry.graph(self.kind, self.version)
        return graph.shown

    def returning(self) -> MoveAttempt | None:
        """Name no other host than the source."""
        return None

    def home_cell(self) -> str:
        """Name the one cell."""
        return CELL

    def close(self) -> None:
        """Give back the connections."""
        self.cell.close()
        self.journal.close()

    def place(self, host: str, task: str | None, status: str, vm_state: str = "active") -> None:
        """Let the server's rows name the host, with this task, and its migration have this status."""
        with self.cell.write() as session:
            values = {"host": host, "node": host, "task_state": task, "vm_state": vm_state}
            session.execute(sa.update(Instance).values(**values))
            known = session.scalar(sa.select(Migration).where(Migration.uuid == MOVE))
            if known is not None:
                known.status = status
            else:
                session.add(
                    Migration(
                        uuid=MOVE,
                        instance_uuid=SERVER,
                        migration_type="migration",
                        status=status,
                        source_compute=SOURCE,
                        dest_compute=DESTINATION,
                        deleted=0,
                    )
                )

    def change(self, **columns: Any) -> None:
        """Change columns of the server's row, as somebody else does."""
        with self.cell.write() as session:
            session.execute(sa.update(Instance).values(**columns))

    def seen(self) -> tuple[str | None, str | None, str | None, str | None]:
        """Read the server's host, vm_state and task_state, and its migration's status."""
        with self.cell.read() as session:
            row = session.scalars(sa.select(Instance)).one()
            status = session.scalar(sa.select(Migration.status).where(Migration.uuid == MOVE))
            return row.host, row.vm_state, row.task_state, status

    def step_runs(self) -> list[StepRun]:
        """Read the history anew, which a test may have changed."""
        with self.journal.read() as session:
            return step_runs.read(session, MOVE)

    def note(self, step: str, direction: str = "execute", *, epoch: int = EPOCH) -> None:
        """Let the history say that the step was entered."""
        with self.journal.write() as session:
            session.add(
                MoveStep(
                    move_id=MOVE,
                    flow_uuid=self.flow_uuid,
                    flow=self.kind,
                    step=step,
                    direction=direction,
                    attempt=self.row.attempt,
                    epoch=epoch,
                    started_at=NOW,
                )
            )

    def context(self, step: str, direction: Direction = "execute") -> Context:
        """Make the context of one run of a step of this move."""
        # Of a run there is what the steps that are tested here ask of it; for anything else they fail.
        return Context(cast("Run", self), step, direction, self.row, self.chosen, {})

    def attempt(self, _move: Move) -> MoveAttempt | None:
        """Return the alternate that the move is on."""
        return self.chosen

    def write(self) -> AbstractContextManager[orm.Session]:
        """Open a transaction of the journal; the claim always stands."""
        return self.journal.write()

    def declared_down(self, host: str) -> bool:
        """Tell whether a person said that the host is off."""
        return host in self.down

    def workers(self) -> dict[str, Any]:
        """List the hosts whose workers are up."""
        return {host: None for host in (SOURCE, DESTINATION) if host not in self.down}

    def command(
        self,
        _step: str,
        direction: Direction,
        *,
        host: str,
        action: str,
        details: msgspec.Struct,
        command_direction: Direction | None = None,
        **_others: Any,
    ) -> dict[str, Any]:
        """Answer a question; write down anything else."""
        if action == "describe_guest":
            answer: dict[str, Any] = msgspec.to_builtins(self.says[host])
            return answer
        self.commands.append((host, action, command_direction or direction))
        self.told.append(details)
        return {}


_EMPTY: Final[dict[str, bytes]] = {}
"""Made once: to make its tables takes longer than all that a test asks of them."""


def _made(folder: Path, name: str, tables: sa.MetaData) -> Database:
    path = folder / f"{name}.sqlite"
    if name not in _EMPTY:
        database = Database(sqlite_url(path))
        tables.create_all(database.engine)
        with database.engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
        database.close()
        _EMPTY[name] = path.read_bytes()
    path.write_bytes(_EMPTY[name])
    return Database(sqlite_url(path))
