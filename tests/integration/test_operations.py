"""Resize, migrate, confirm and revert by the command line, for every kind of server, looked at from outside."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from support.labs.operations import Stage, stage

from droveway.persistence.nova.cell import Instance, Migration

PLACES = {
    "one cell": """
cells: {cell1: {hosts: {host1: {}, host2: {}, host3: {}, host4: {shared: nfs1}, host5: {shared: nfs1}}}}
""",
    "cells": """
options: {cross_cell: true}
cells:
  cell1: {hosts: {host1: {}}}
  cell2: {hosts: {host2: {}}}
  cell3: {hosts: {host3: {}}}
  cell4: {hosts: {host4: {}}}
  cell5: {hosts: {host5: {}}}
""",
}
"""One cell, or a cell for each host, so that every move leads into another one."""

CLOUD = """
flavors:
  small: {vcpus: 1, memory_mb: 256, root_gb: 1}
  large: {vcpus: 2, memory_mb: 512, root_gb: 2}
  scratch: {vcpus: 1, memory_mb: 256, root_gb: 1, ephemeral_gb: 1, swap_mb: 1}
  scratch.large: {vcpus: 2, memory_mb: 512, root_gb: 2, ephemeral_gb: 2, swap_mb: 2}
images: {base: {size_mb: 1}}
servers:
  web: {flavor: small, host: host1, image: base, ports: [{}, {}], volumes: [{size_gb: 1}]}
  idle: {flavor: small, host: host1, image: base, ports: [{}], volumes: [{size_gb: 1}], state: stopped}
  db: {flavor: small, host: host2, ports: [{}], volumes: [{size_gb: 1, boot: true}, {size_gb: 1}]}
  archive: {flavor: small, host: host2, ports: [{}], volumes: [{size_gb: 1, boot: true}], state: stopped}
  cache: {flavor: scratch, host: host3, image: base}
  mail: {flavor: small, host: host4, image: base, ports: [{}]}
  cold: {flavor: small, host: host4, image: base, state: stopped}
  web2: {flavor: small, host: host2, image: base, ports: [{}, {}], volumes: [{size_gb: 1}]}
  db2: {flavor: small, host: host1, ports: [{}], volumes: [{size_gb: 1, boot: true}, {size_gb: 1}]}
  archive2: {flavor: small, host: host1, ports: [{}], volumes: [{size_gb: 1, boot: true}], state: stopped}
  mail2: {flavor: small, host: host5, image: base, ports: [{}]}
  listed: {flavor: small, host: host1, image: base}
"""
STOPPED = ("idle", "archive", "cold", "archive2")
RUNNING, SHUTDOWN = 1, 4
"""Nova's power_state."""

FROM_VOLUME = ("db", "archive", "db2", "archive2")
# What Placement has to hold for a flavor; a server that boots from a volume has no local root disk.
AMOUNTS = {
    "small": {"VCPU": 1, "MEMORY_MB": 256, "DISK_GB": 1},
    "large": {"VCPU": 2, "MEMORY_MB": 512, "DISK_GB": 2},
    "scratch": {"VCPU": 1, "MEMORY_MB": 256, "DISK_GB": 3},
    "scratch.large": {"VCPU": 2, "MEMORY_MB": 512, "DISK_GB": 5},
}


@pytest.fixture(scope="module", name="lab", params=PLACES)
def fixture_lab(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Stage]:
    cloud = PLACES[request.param] + CLOUD
    with stage(tmp_path_factory.mktemp("operations") / "lab", cloud) as made, made.running():
        yield made


def amounts(name: str, flavor: str) -> dict[str, int]:
    found = dict(AMOUNTS[flavor])
    if name in FROM_VOLUME:
        del found["DISK_GB"]
    return found


def larger(flavor: str) -> str:
    return {"small": "large", "scratch": "scratch.large"}[flavor]


def states(lab: Stage, name: str) -> tuple[Any, ...]:
    """vm_state, task_state, and the status and type of the server's latest migration; power_state is as Nova has it."""
    server = lab.id_of(name)
    with lab.lab.cell_databases[lab.server(name).cell].read() as session:
        row = session.scalars(sa.select(Instance).where(Instance.uuid == server)).one()
        query = sa.select(Migration).where(Migration.instance_uuid == server).order_by(Migration.id.desc())
        migration = session.scalars(query).first()
        assert migration is not None
        runs = bool(lab.standing(name).runs)
        assert row.power_state == (RUNNING if runs else SHUTDOWN), (name, row.power_state, runs)
        return row.vm_state, row.task_state, migration.status, migration.migration_type


class Guest:
    """The guest of one server, by its own word."""

    def __init__(self, lab: Stage, name: str) -> None:
        self.lab = lab
        self.name = name
        self.starts = lab.starts(name)
        if name not in STOPPED:
            lab.lab.hypervisor(lab.server(name).host or "").write_mark(lab.id_of(name), f"mark {name}")
            self.boots = self.says()["boots"]

    def says(self) -> dict[str, Any]:
        return self.lab.lab.hypervisor(self.lab.server(self.name).host or "").probe_guest(self.lab.id_of(self.name))

    def assert_booted(self, hosts: list[str], flavor: str, *, boots: int) -> None:
        """Since the beginning it was started on these hosts, and it is the same guest with the flavor's sizes."""
        if self.name in STOPPED:
            assert self.lab.starts(self.name) == []
            return
        assert self.lab.starts(self.name) == [*self.starts, *hosts]
        assert self.says() == {
            "boots": self.boots + boots,
            "mark": f"mark {self.name}",
            "vcpus": AMOUNTS[flavor]["VCPU"],
            "memory_mb": AMOUNTS[flavor]["MEMORY_MB"],
        }


@pytest.mark.parametrize("name", ["web", "idle", "db", "archive", "cache", "mail", "cold"])
def test_a_resize_is_reverted_and_a_migration_to_a_named_host_confirmed(lab: Stage, name: str) -> None:
    """R0-02, R0-09, R0-14, R0-16, R0-23, R1-22, R3-05, R3-08, R3-09: what holds what at every rest.

    R1-15, R1-16, R1-29: the same between cells, to a host that is named too.
    """
    before, guest = lab.standing(name), Guest(lab, name)
    old, new = before.flavor, larger(before.flavor)
    lab.cli("server", "resize", name, "--flavor", new)
    move = lab.move(name)
    to = str(move.dest_host)
    assert to != before.host
    assert lab.standing(name) == before.verifying(to, new, amounts(name, new))
    assert lab.held(move.id) == {before.host: amounts(name, old)}
    assert states(lab, name) == ("resized", None, "finished", "resize")
    guest.assert_booted([to], new, boots=1)
    lab.assert_balanced()

    lab.cli("server", "revert", name)
    assert lab.standing(name) == before
    assert lab.held(move.id) == {}
    assert states(lab, name) == ("stopped" if name in STOPPED else "active", None, "reverted", "resize")
    # What the moved guest wrote to local disks is discarded with them; volumes keep it.
    guest.assert_booted([to, before.host], old, boots=2 if name in FROM_VOLUME else 1)
    lab.assert_balanced()

    named = next(host for host in sorted(lab.lab.identity.hosts) if host not in (before.host, to))
    guest = Guest(lab, name)
    lab.cli("server", "migrate", name, "--host", named)
    move = lab.move(name)
    assert lab.standing(name) == before.verifying(named, old, amounts(name, old))
    assert lab.held(move.id) == {before.host: amounts(name, old)}
    assert states(lab, name) == ("resized", None, "finished", "migration")
    lab.cli("server", "confirm", name)
    assert lab.standing(name) == before.confirmed(named, old, amounts(name, old))
    assert lab.held(move.id) == {}
    assert states(lab, name) == ("stopped" if name in STOPPED else "active", None, "confirmed", "migration")
    guest.assert_booted([named], old, boots=1)
    lab.assert_balanced()


@pytest.mark.parametrize("name", ["web2", "db2", "archive2", "mail2"])
def test_a_migration_is_reverted_and_a_resize_confirmed(lab: Stage, name: str) -> None:
    """R0-02, R0-09, R1-15, R1-22, R3-08, R3-09: the same two operations with the other ends."""
    before, guest = lab.standing(name), Guest(lab, name)
    old, new = before.flavor, larger(before.flavor)
    lab.cli("server", "migrate", name)
    to = str(lab.move(name).dest_host)
    assert lab.standing(name) == before.verifying(to, old, amounts(name, old))
    lab.cli("move", "revert", lab.move(name).id[:8])
    assert lab.standing(name) == before
    guest.assert_booted([to, before.host], old, boots=2 if name in FROM_VOLUME else 1)

    guest = Guest(lab, name)
    lab.cli("move", "create", name, "--flavor", new)
    to = str(lab.move(name).dest_host)
    lab.cli("move", "confirm", lab.move(name).id[:8])
    assert lab.standing(name) == before.confirmed(to, new, amounts(name, new))
    assert lab.held(lab.move(name).id) == {}
    guest.assert_booted([to], new, boots=1)
    lab.assert_balanced()
    if name in STOPPED:
        lab.cli("lab", "server", "start", name)
        assert lab.standing(name).runs == lab.starts(name) == [to]


def test_the_moves_are_listed_with_their_ends(lab: Stage) -> None:
    """R1-19, R2-12: every move of a server is found with its kind, its hosts and its end."""
    lab.cli("server", "migrate", "listed")
    lab.cli("server", "revert", "listed")
    lab.cli("server", "resize", "listed", "--flavor", "large")
    moves = lab.json("move", "list", "--server", "listed")[::-1]
    between = "cross_cell_" if len(lab.lab.cells.names()) > 1 else ""
    kinds = [(row["kind"].removeprefix(between), row["state"]) for row in moves]
    assert kinds == [("migrate", "reverted"), ("resize", "verifying")]
    of_kind = lab.json("move", "list", "--server", "listed", "--kind", f"{between}resize")
    assert [row["id"] for row in of_kind] == [moves[1]["id"]]
    history = lab.json("move", "history", moves[0]["id"])
    assert [row["seq"] for row in history] == sorted(row["seq"] for row in history)
    assert all(row["ended"] and not row["error"] for row in history)
    flows = [f"{between}migrate", f"{between}revert"]
    assert list(dict.fromkeys(row["flow"] for row in history)) == flows
    shown = lab.json("move", "show", moves[0]["id"])
    assert (shown["state"], shown["source"], shown["error"]) == ("reverted", "host1", None)
