"""The books of one server in the middle of a resize, as an audit reads them: made in memory, changed by each test."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from droveway.audit import Finding, Snapshot, judge
from droveway.audit.records import (
    AttachmentView,
    BlockDevice,
    Directory,
    FlowRow,
    HostView,
    MappingRow,
    MigrationRow,
    MoveRow,
    Node,
    PortView,
    ServerRow,
    Store,
)
from droveway.persistence.journal.states import State
from droveway.wire.queries import Guest

SERVER: Final = "11111111-1111-4111-8111-111111111111"
MOVE: Final = "22222222-2222-4222-8222-222222222222"
ENDED: Final = "33333333-3333-4333-8333-333333333333"
SMALL: Final = {"VCPU": 1, "MEMORY_MB": 512, "DISK_GB": 1}
BIG: Final = {"VCPU": 2, "MEMORY_MB": 1024, "DISK_GB": 2}

SOURCE: Final = {SERVER: {"node-source": SMALL}}
BOTH: Final = {SERVER: {"node-dest": BIG}, MOVE: {"node-source": SMALL}}
DEST: Final = {SERVER: {"node-dest": BIG}}
NEITHER: Final[dict[str, Any]] = {}


def flavor(name: str, vcpus: int, memory_mb: int, root_gb: int) -> dict[str, Any]:
    """The fields of a Flavor object."""
    return {
        "id": vcpus,
        "name": name,
        "flavorid": name,
        "vcpus": vcpus,
        "memory_mb": memory_mb,
        "root_gb": root_gb,
        "ephemeral_gb": 0,
        "swap": 0,
        "extra_specs": {},
    }


def guest(*, running: bool, vcpus: int = 1, memory_mb: int = 512) -> Guest:
    """The server's guest."""
    return Guest(
        server=SERVER,
        name="instance-1",
        running=running,
        vcpus=vcpus,
        memory_mb=memory_mb,
        defined=True,
    )


def view(host: str, *guests: Guest, volumes: tuple[str, ...] = (), ports: tuple[str, ...] = ()) -> HostView:
    """What a host holds of the server."""
    return HostView(
        host=host,
        guests=guests,
        connections=frozenset((SERVER, volume) for volume in volumes),
        plugged=frozenset((SERVER, port) for port in ports),
    )


def directory(suffix: str = "", move: str = "", files: tuple[str, ...] = ("disk",), server: str = SERVER) -> Directory:
    """A directory of the server."""
    return Directory(name=server + suffix, is_directory=True, files=frozenset(files), move=move)


def probe(move: str) -> Directory:
    """The file by which a move finds out whether storage is shared."""
    return Directory(name=f".droveway-probe-{move}-1", is_directory=False, files=frozenset(), move="")


def store(host: str, *entries: Directory) -> Store:
    """A host's own instances directory."""
    return Store(hosts=(host,), path=f"/{host}/instances", entries=entries)


def attachment(name: str, host: str | None, status: str = "attached") -> AttachmentView:
    """An attachment of the server's one volume."""
    return AttachmentView(id=name, volume="volume", server=SERVER, host=host, status=status)


def books(state: State = State.RUNNING, **changes: Any) -> Snapshot:
    """A running server on the source whose move is in this state and has claimed nothing yet; with these changes."""
    small, big = flavor("small", 1, 512, 1), flavor("big", 2, 1024, 2)
    row = ServerRow(
        cell="cell1",
        uuid=SERVER,
        name="web",
        host="source",
        vm_state="active",
        task_state="resize_prep",
        power_state=1,
        hidden=False,
        columns={"instance_type_id": 1, "memory_mb": 512, "vcpus": 1, "root_gb": 1, "ephemeral_gb": 0},
        flavors={"cur": small, "old": None, "new": None},
        context=None,
        old_vm_state=None,
        fence="7",
        volumes=(BlockDevice(volume="volume", attachment="a-source", boot=False),),
        broken="",
    )
    move = MoveRow(
        id=MOVE,
        kind="resize",
        server=SERVER,
        server_name="web",
        state=state,
        parked_from=None,
        source_cell="cell1",
        source_host="source",
        dest_cell="cell1",
        dest_host="dest",
        flow_uuid="flow",
        delete_requested=False,
        old_flavor=small,
        new_flavor=big,
    )
    ended = replace(move, id=ENDED, state=State.FAILED, flow_uuid=None, old_flavor=None, new_flavor=None)
    fields: dict[str, Any] = {
        "cells": ("cell1",),
        "servers": (row,),
        "migrations": (
            MigrationRow(
                cell="cell1",
                id=1,
                uuid=MOVE,
                server=SERVER,
                status="pre-migrating",
                source="source",
                destination=None,
            ),
        ),
        "nodes": tuple(_node(host, 1 if host == "source" else 0) for host in ("source", "dest", "third")),
        "mappings": (MappingRow(server=SERVER, cell="cell1", deleted=False),),
        "requests": {SERVER: "small"},
        "moves": (move, ended),
        "flows": (FlowRow(uuid="flow", move=MOVE, kind="resize", ended=False),),
        "open_steps": (),
        "begun": frozenset({"flow"}),
        "intents": (),
        "debts": (),
        "providers": {"node-source": None, "node-dest": None, "node-third": None},
        "allocations": SOURCE,
        "ports": (PortView(id="port", server=SERVER, bindings={"source": "ACTIVE"}),),
        "shows_requests": True,
        "attachments": (attachment("a-source", "source"),),
        "images": (),
        "hosts": (
            view("source", guest(running=True), volumes=("volume",), ports=("port",)),
            view("dest"),
            view("third"),
        ),
        "stores": (store("source", directory()), store("dest"), store("third")),
        "overlaps": (),
        "unseen": (),
    }
    return Snapshot(**(fields | changes))


def with_move(snapshot: Snapshot, **fields: Any) -> Snapshot:
    """The snapshot with these fields of its open move changed."""
    moves = [replace(move, **fields) if move.id == MOVE else move for move in snapshot.moves]
    return replace(snapshot, moves=tuple(moves))


def with_row(snapshot: Snapshot, **fields: Any) -> Snapshot:
    """The snapshot with these fields of the server's row changed."""
    return replace(snapshot, servers=tuple(replace(row, **fields) for row in snapshot.servers))


def findings(snapshot: Snapshot, kind: str) -> list[Finding]:
    """What is found of one kind."""
    return [finding for finding in judge(snapshot).findings if finding.kind == kind]


def _node(host: str, vcpus: int) -> Node:
    used = {"vcpus_used": vcpus, "memory_mb_used": 512 * vcpus, "local_gb_used": vcpus, "running_vms": vcpus}
    free = {"free_ram_mb": 8192 - 512 * vcpus, "free_disk_gb": 100 - vcpus}
    return Node(cell="cell1", host=host, uuid=f"node-{host}", used=used | free, memory_mb=8192, local_gb=100)
