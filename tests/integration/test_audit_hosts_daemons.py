"""`audit` on an installation looks at what lies on its hosts, by asking their workers: real daemons and directories."""

from __future__ import annotations

import json
import os
import shutil
import signal
import uuid
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from support.daemons.daemons import LONG, Installation
from support.labs.small_lab import read_move, until

from droveway.clients.zookeeper import command_path, page_path, query_path, worker_path
from droveway.engines.conductor.host_channel import HostChannel
from droveway.lab.cloud import Cloud, parse_cloud
from droveway.persistence.journal import debts
from droveway.persistence.journal.states import State
from droveway.persistence.nova import catalog
from droveway.persistence.nova.cell import Instance
from droveway.wire import codec, commands
from droveway.wire.values import ACTION_VERSION
from droveway.workers.actions.ownership import kept_name, set_aside_name
from droveway.workers.hypervisors.base import Mark

CLOUD = """
cells: {cell1: {hosts: {host1: {}, host2: {}, host3: {shared: nfs}, host4: {shared: nfs}}}}
flavors: {small: {vcpus: 1, memory_mb: 256, root_gb: 1}}
images: {base: {size_mb: 96}}
servers:
  web: {flavor: small, host: host1, image: base, ports: [{}], volumes: [{size_gb: 1}]}
  mail: {flavor: small, host: host3, image: base, state: stopped}
  data: {flavor: small, host: host1, image: base, state: stopped}
"""
"""The servers of host3 and host4 lie in one directory."""

SLOW = {"OS_WORKER__TRANSFER_LIMIT_EACH": "1"}
"""A copy of the image's data, of 6 MiB, takes long enough for several audits."""


@pytest.fixture(scope="module", name="cloud")
def fixture_cloud() -> Cloud:
    return parse_cloud(CLOUD, "hosts")


def ids(site: Installation) -> dict[str, str]:
    """The servers' ids by their names."""
    return {server.name: server.id for server in catalog.servers(site.lab.api, site.lab.cell_databases)}


def directory(site: Installation, host: str, name: str) -> Path:
    return site.lab.layout.host(host) / "instances" / name


def start(site: Installation, **environment: str) -> None:
    """Every worker and a conductor that knows of them."""
    for host in site.lab.identity.hosts:
        site.worker(host, **environment)
    site.conductor()
    until(lambda: {row["state"] for row in site.told("worker", "list")} == {"up"}, "all workers", LONG)


def clean(site: Installation) -> str:
    """What an audit says that has to find nothing."""
    code, said, complained = site.droveway("audit")
    assert (code, said) == (0, ""), said + complained
    assert "the books balance\n" in complained
    return complained


def findings(site: Installation, *words: str, **environment: str) -> list[dict[str, Any]]:
    """What an audit finds that has to find something."""
    code, said, complained = site.droveway("audit", *words, "-f", "json", **environment)
    assert code == 3, said + complained
    return list(json.loads(said))


def moved(site: Installation, *words: str) -> str:
    """The move that a command began, once nobody runs it any more."""
    before = {row["id"] for row in site.told("move", "list")}
    site.done("move", "create", *words)
    (move,) = {str(row["id"]) for row in site.told("move", "list")} - before
    site.await_rest(move)
    return move


def files(site: Installation) -> dict[str, bytes]:
    """Every file below every instances directory, by its path."""
    roots = [site.lab.layout.host(host) / "instances" for host in site.lab.identity.hosts]
    return {
        f"{root.parent.name}/{path.relative_to(root)}": path.read_bytes()
        for root in roots
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name != "disk" and not path.is_symlink()
    }


def test_nothing_is_found_at_rest_while_a_move_goes_on_nor_in_what_it_keeps(site: Installation) -> None:
    """A directory that hosts share is counted once; no audit leaves anything in ZooKeeper."""
    start(site, **SLOW)
    said = clean(site)
    assert " 4 hosts," in said
    assert " 3 guests, 3 directories\n" in said
    stores = [directory(site, host, ".droveway-store").read_text() for host in ("host1", "host2", "host3", "host4")]
    assert (stores[2], len(set(stores))) == (stores[3], 3)

    site.done("move", "create", "web", "--to-host", "host2", "--keep-source", "1d")
    (listed,) = site.told("move", "list")
    move = str(listed["id"])
    site.await_step(move, "copy_disks")
    audits = 0
    while read_move(site.lab, move).state != State.VERIFYING:
        clean(site)
        audits += read_move(site.lab, move).state == State.RUNNING
    assert audits > 0
    assert site.await_rest(move) == State.VERIFYING
    assert directory(site, "host1", set_aside_name(ids(site)["web"])).is_dir()
    clean(site)
    site.done("move", "confirm", move)
    until(lambda: read_move(site.lab, move).state == State.DONE, "the confirm", LONG)
    assert directory(site, "host1", kept_name(ids(site)["web"], move)).is_dir()
    clean(site)

    shared = moved(site, "mail", "--to-host", "host4")
    assert read_move(site.lab, shared).state == State.VERIFYING
    assert directory(site, "host3", set_aside_name(ids(site)["mail"])).is_dir()
    clean(site)
    site.done("move", "revert", shared)
    until(lambda: read_move(site.lab, shared).state == State.REVERTED, "the revert", LONG)
    clean(site)
    for host in site.lab.identity.hosts:
        assert site.session.children(query_path(host)) == []
        until(lambda host=host: site.session.children(page_path(host)) == [], "no answers", LONG)  # type: ignore[misc]


def test_what_lies_on_hosts_is_found_and_what_an_ended_move_left_is_taken_away(site: Installation) -> None:
    """Each thing once, on the host that has it; whatever is not proved stays as it is, byte by byte."""
    start(site)
    move = moved(site, "web", "--to-host", "host2", "--confirm", "auto")
    until(lambda: read_move(site.lab, move).state == State.DONE, "the move's end", LONG)
    clean(site)
    web, mail, data = (ids(site)[name] for name in ("web", "mail", "data"))
    nobody = str(uuid.uuid4())
    before = files(site)

    copy = directory(site, "host1", web)
    copy.mkdir()
    (copy / "disk").write_bytes(b"stale")
    marker = {"move": move, "epoch": 1, "server": web, "host": "host1", "disks": []}
    (copy / "droveway.json").write_text(json.dumps(marker))
    part = directory(site, "host1", f"{web}.part-{move}-host1")
    part.mkdir()
    define(site, "host1", web, "host2", Mark(move=move, epoch=1))
    proved = {("disk", f"instances/{copy.name}"), ("disk", f"instances/{part.name}"), ("guest", web)}

    aside, orphan = directory(site, "host1", set_aside_name(web)), directory(site, "host2", nobody)
    for path, name in ((aside, "droveway-manifest.json"), (orphan, "droveway.json")):
        path.mkdir()
        (path / "kept").write_bytes(b"data")
        (path / name).write_text(json.dumps({"move": move, "epoch": 1}))
    disk = directory(site, "host3", mail) / "disk"
    disk.rename(disk.with_name("lost"))
    shutil.copytree(directory(site, "host1", data), directory(site, "host2", data))
    define(site, "host2", data, "host1", None)
    runs = [site.lab.hypervisor(host) for host in ("host1", "host2")]
    for hypervisor in runs:
        hypervisor.start(data, lambda: None)
    left = {
        ("disk", f"instances/{aside.name}", "host1"),
        ("disk", f"instances/{nobody}", "host2"),
        ("disk", f"instances/{mail}", "host3"),
        ("disk", f"instances/{data}", "host2"),
        ("guest", data, "host1"),
        ("guest", data, "host2"),
        ("guest", data, "host1,host2"),
    }
    found = findings(site)
    assert {(row["kind"], row["subject"], row["host"]) for row in found} == left | {(*each, "host1") for each in proved}
    (twice,) = [row for row in found if row["host"] == "host1,host2"]
    assert twice["detail"] == "the guest of data runs on host1 and host2 at once: its data is being damaged"

    plan = findings(site, "--heal")
    assert {(row["kind"], row["subject"]) for row in plan if row["heal"] == "mend"} == proved
    code, _, complained = site.droveway("audit", "--heal", "--yes")
    assert (code, f"{len(found)} findings before, {len(found) - 3} after" in complained) == (3, True), complained
    assert (copy.exists(), part.exists(), site.lab.hypervisor("host1").guest(web)) == (False, False, None)
    assert {(row["kind"], row["subject"], row["host"]) for row in findings(site)} == left

    for hypervisor in runs:
        hypervisor.stop(data, grace=0, fence=lambda: None)
    site.lab.hypervisor("host2").undefine(data)
    disk.with_name("lost").rename(disk)
    assert (aside / "kept").read_bytes() == (orphan / "kept").read_bytes() == b"data"
    for path in (aside, orphan, directory(site, "host2", data)):
        shutil.rmtree(path)
    clean(site)
    assert files(site) == before


def test_what_a_lab_s_audit_sees_an_installation_s_sees_too(site: Installation) -> None:
    """A server in ERROR, a command that belongs to nothing, other bytes in what was set aside, one guest on two hosts.

    What a host owes for the move explains none of it.
    """
    start(site)
    move = moved(site, "web", "--to-host", "host2")
    assert read_move(site.lab, move).state == State.VERIFYING
    clean(site)
    web, mail = (ids(site)[name] for name in ("web", "mail"))
    aside = directory(site, "host1", set_aside_name(web)) / "disk"
    status = aside.stat()
    with aside.open("r+b") as file:
        file.seek(4096)
        kept = file.read(1)
        file.seek(4096)
        file.write(bytes([kept[0] ^ 1]))
    os.utime(aside, ns=(status.st_atime_ns, status.st_mtime_ns))
    key = f"{uuid.uuid4()}.stop_guest.execute.7"
    # A worker takes no command that it cannot read, and leaves it where it is.
    assert site.session.create(command_path("host3", key), b"{}")
    with site.lab.cells.database("cell1").write() as session:
        session.execute(sa.update(Instance).where(Instance.uuid == mail).values(vm_state="error"))
    shutil.copytree(directory(site, "host2", web), directory(site, "host1", web))
    define(site, "host1", web, "host2", None)
    site.lab.hypervisor("host1").start(web, lambda: None)
    with site.lab.journal.write() as session:
        for host in ("host1", "host2"):
            debts.owe(session, move_id=move, host=host, action="remove_guest", details={})

    found = {(row["kind"], row["subject"], row["host"]) for row in findings(site)}
    assert found >= {
        ("disk", f"instances/{aside.parent.name}/disk", "host1"),
        ("command", f"commands/{key}", "host3"),
        ("task", "vm_state", "host3"),
        ("guest", web, "host1,host2"),
    }
    site.lab.hypervisor("host1").stop(web, grace=0, fence=lambda: None)


def define(site: Installation, host: str, server: str, home: str, mark: Mark | None) -> None:
    """Define the server's guest on a host as it is defined where it lives."""
    guest = site.lab.hypervisor(home).guest(server)
    assert guest is not None
    site.lab.hypervisor(host).define(
        server,
        guest.definition,
        vcpus=None,
        memory_mb=None,
        disks=[directory(site, host, server) / "disk"],
        volumes=[],
        ports=[],
        mark=mark,
    )


def test_a_host_that_could_not_be_looked_at_is_named_with_the_reason(site: Installation) -> None:
    """No worker, one of the level before, one that is mute; and a pin, by which nobody is asked."""
    site.worker("host1")
    mute = site.worker("host2")
    older = [f"{name}@{ACTION_VERSION}" for name in commands.ACTIONS]
    old = commands.Registration(host="host3", version="0.9", hypervisor="sandbox", actions=older, address="unix:/none")
    assert site.session.create(worker_path("host3"), codec.encode(old), ephemeral=True)
    mute.process.send_signal(signal.SIGSTOP)
    sentence = "{} could not be looked at, so what it holds was not compared: {}"
    told = {row["host"]: row["detail"] for row in findings(site)}
    # Its session ends while it is waited for, or has by then.
    assert told.pop("host2") in {
        sentence.format("host2", why) for why in ("its worker went away before it answered", "no worker of it is up")
    }
    assert told == {
        "host3": sentence.format("host3", "its worker (0.9) does not know list_guests@1: upgrade it first"),
        "host4": sentence.format("host4", "no worker of it is up"),
    }
    mute.process.send_signal(signal.SIGCONT)
    site.await_worker("host2")
    # It tells of what lies in the directory that it shares with host3, whose server lives there.
    site.worker("host4")
    assert [(row["kind"], row["host"]) for row in findings(site)] == [("host", "host3")]

    pinned = findings(site, OS_UPGRADE_LEVELS__WORKER="2")
    assert [row["host"] for row in pinned] == ["host1", "host2", "host3", "host4"]
    assert "came with protocol level 3" in pinned[0]["detail"]
    assert HostChannel(site.session).query(["host1"], pinned=2)["host1"].why in pinned[0]["detail"]

    # A host that somebody declared down is noted.
    site.conductor()
    until(lambda: {row["host"]: row["state"] for row in site.told("worker", "list")}.get("host3") == "up", "host3")
    assert site.session.delete(worker_path("host3"))
    until(lambda: {row["host"]: row["state"] for row in site.told("worker", "list")}["host3"] == "down", "no host3")
    site.done("host", "down", "host3", "--i-made-sure", "it burnt")
    noted = clean(site)
    assert (
        "noted: host3 is declared down and could not be looked at, so what it holds was not compared: no wor" in noted
    )

    away = findings(site, OS_ZOOKEEPER__HOSTS="127.0.0.1:1")
    assert {row["host"] for row in away} == {"host1", "host2", "host4"}
    assert "no ZooKeeper answers at 127.0.0.1:1" in away[0]["detail"]
