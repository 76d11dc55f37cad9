"""An ensemble that speaks TLS alone: who gets in, who may do what there, and a whole move of daemons over it."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import ssl
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
from kazoo import exceptions
from kazoo.client import KazooClient
from kazoo.security import ACL, OPEN_ACL_UNSAFE, make_acl
from support.daemons.daemons import CONDUCTOR, SESSION, Installation, installation, protection
from support.labs import snapshot
from support.labs.small_lab import assert_balanced, file_flow, in_child, small_cloud
from support.servers.certificates import Authority
from support.servers.zookeeper_server import Ensemble, running_ensemble

from droveway.clients import zookeeper
from droveway.clients.zookeeper import (
    BOARD,
    ROOT,
    Coordination,
    command_path,
    epoch_path,
    host_path,
    progress_path,
    result_path,
    worker_path,
)
from droveway.engines.conductor.taskflow.board import MoveBoard, Posting
from droveway.engines.keeper.host_nodes import host_nodes
from droveway.errors import CoordinationLost
from droveway.lab import build
from droveway.persistence.journal.states import State


@pytest.fixture(scope="module", name="authority")
def fixture_authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module", name="ensemble")
def fixture_ensemble(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[Ensemble]:
    with running_ensemble(tmp_path_factory.mktemp("ensemble"), authority) as ensemble:
        yield ensemble


@pytest.fixture(scope="module", name="lab")
def fixture_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[snapshot.Snapshot]:
    folder = tmp_path_factory.mktemp("daemons")
    in_child(lambda: build.create(folder / "lab", small_cloud("host1", "host2")).close())
    yield snapshot.take(folder / "lab", folder / "kept")
    build.destroy(folder / "lab")


@pytest.fixture(name="site")
def fixture_site(
    lab: snapshot.Snapshot, ensemble: Ensemble, authority: Authority, tmp_path: Path
) -> Iterator[Installation]:
    restored = lab.restore()
    with installation(restored, tmp_path, ensemble.hosts, None, authority) as made:
        yield made
    restored.close()


def test_a_move_goes_through_with_every_daemon_under_its_own_certificate(site: Installation) -> None:
    """Workers start before their folders are there, and wait for the conductor that makes them."""
    workers = site.workers()
    conductor = site.conductor()
    for host in workers:
        site.await_worker(host)
    move = file_flow(site.lab, "resize")
    assert site.await_rest(move) == State.VERIFYING, conductor.text()
    file_flow(site.lab, "confirm")
    assert site.await_rest(move) == State.DONE, conductor.text()
    assert_balanced(site.lab)
    for daemon in (conductor, *workers.values()):
        daemon.stop()
        assert "Traceback" not in daemon.log.read_text(), daemon.text()


@pytest.fixture(name="connect")
def fixture_connect(ensemble: Ensemble, authority: Authority) -> Iterator[Callable[[str], Coordination]]:
    """Sessions by the name in their certificate; the folders of host1 and host2 are there."""
    opened: list[Coordination] = []

    def connect(name: str) -> Coordination:
        opened.append(zookeeper.connect(ensemble.hosts, timeout=SESSION, protection=protection(authority.issue(name))))
        return opened[-1]

    conductor = connect(CONDUCTOR)
    conductor.delete(ROOT)
    conductor.create(epoch_path("m"), b"7")
    conductor.create(f"{BOARD}/flow", b"job")
    for host in ("host1", "host2"):
        for folder in host_nodes(host):
            conductor.ensure(folder)
        conductor.create(command_path(host, "k"), b"command")
        conductor.create(result_path(host, "theirs"), b"result")
    yield connect
    conductor.delete(ROOT)
    for session in opened:
        session.close()


REFUSED: Final[dict[str, Callable[[KazooClient], object]]] = {
    "reads another host's command": lambda client: client.get(command_path("host2", "k")),
    "lists another host's commands": lambda client: client.get_children(command_path("host2")),
    "gives itself a command": lambda client: client.create(command_path("host1", "new"), b""),
    "gives another host a command": lambda client: client.create(command_path("host2", "new"), b""),
    "changes its own command": lambda client: client.set(command_path("host1", "k"), b"other"),
    "takes its own command away": lambda client: client.delete(command_path("host1", "k")),
    "answers for another host": lambda client: client.create(result_path("host2", "k"), b""),
    "reads another host's answer": lambda client: client.get(result_path("host2", "theirs")),
    "changes another host's answer": lambda client: client.set(result_path("host2", "theirs"), b""),
    "takes another host's answer away": lambda client: client.delete(result_path("host2", "theirs")),
    "tells another host's progress": lambda client: client.create(progress_path("host2", "k"), b""),
    "registers as another host": lambda client: client.create(worker_path("host2"), b"", ephemeral=True),
    "makes the folders of a third host": lambda client: client.create(host_path("host3"), b""),
    "replaces the folder of its commands": lambda client: client.create(f"{host_path('host1')}/other", b""),
    "raises an epoch": lambda client: client.set(epoch_path("m"), b"8"),
    "makes an epoch": lambda client: client.create(f"{ROOT}/moves/other", b"8"),
    "takes an epoch away": lambda client: client.delete(epoch_path("m")),
    "lists the board": lambda client: client.get_children(BOARD),
    "reads a job": lambda client: client.get(f"{BOARD}/flow"),
    "offers a job": lambda client: client.create(f"{BOARD}/other", b""),
    "claims a job": lambda client: client.create(f"{BOARD}/flow.lock", b"", ephemeral=True),
    "takes a job away": lambda client: client.delete(f"{BOARD}/flow"),
    "opens the root to itself": lambda client: client.set_acls(ROOT, OPEN_ACL_UNSAFE),
    "opens its commands to itself": lambda client: client.set_acls(command_path("host1"), OPEN_ACL_UNSAFE),
}


def test_a_worker_may_not_go_beyond_its_own_host(connect: Callable[[str], Coordination]) -> None:
    """As a worker that was taken over could try it: past Droveway's own code, with the certificate of host1."""
    worker = connect("host1")
    refused = []
    for what, tried in REFUSED.items():
        with contextlib.suppress(exceptions.NoAuthError):
            tried(worker.client)
            continue
        refused.append(what)
    assert refused == list(REFUSED)


def test_a_worker_may_do_what_it_has_to(connect: Callable[[str], Coordination]) -> None:
    """The refusals are of what it does beyond its own host, not of all that it does."""
    conductor, worker = connect(CONDUCTOR), connect("host1")
    assert worker.get(command_path("host1", "k")) == (b"command", 0)
    assert worker.children(command_path("host1")) == ["k"]
    assert worker.get(epoch_path("m"), sync=True) == (b"7", 0)
    for path in (result_path("host1", "k"), progress_path("host1", "k"), worker_path("host1")):
        assert worker.create(path, b"one", ephemeral=path == worker_path("host1"))
        assert worker.put(path, b"two")
        assert conductor.get(path, sync=True) == (b"two", 1)
        assert worker.delete(path)
        assert worker.create(path, b"three")
        assert conductor.delete(path), "conductors clear up what workers made"


def test_every_node_of_a_conductor_is_closed_to_others(connect: Callable[[str], Coordination]) -> None:
    """Also what TaskFlow's board makes, and the folders on the way to a node."""
    conductor = connect(CONDUCTOR)
    assert conductor.access is not None
    board = MoveBoard(conductor)
    board.connect()
    try:
        flow = Posting(
            flow=str(uuid.uuid4()),
            move=str(uuid.uuid4()),
            kind="resize",
            version=1,
            digest="none",
            urgent=False,
            filed="2026-01-01T00:00:00",
        )
        assert board.post_flow(flow)
        job = next(job for job in board.iterjobs(only_unclaimed=True, ensure_fresh=True) if job.uuid == flow.flow)
        board.claim(job, "somebody")
        assert conductor.create_guarded(command_path("host9", "k"), b"", guard=epoch_path("m"), version=0)
        found = dict(acls(conductor, ROOT))
        assert {f"{job.path}.lock", f"{ROOT}/hosts/host9", command_path("host9", "k")} <= set(found)
        wrong = [path for path, entries in found.items() if entries != conductor.access.of(path)]
        assert wrong == []
    finally:
        board.close()


def acls(session: Coordination, path: str) -> Iterator[tuple[str, list[ACL]]]:
    """The access list of every node at and below this one."""
    yield path, session.client.get_acls(path)[0]
    for name in session.children(path):
        yield from acls(session, f"{path}/{name}")


def test_a_client_without_a_certificate_does_not_get_in(ensemble: Ensemble, authority: Authority) -> None:
    context = ssl.create_default_context(cafile=authority.path)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    host, port = ensemble.servers[0].hosts.split(":")
    with socket.create_connection((host, int(port)), timeout=20) as plain, pytest.raises(ssl.SSLError, match="alert"):
        context.wrap_socket(plain, server_hostname=host)


def test_a_certificate_of_another_authority_does_not_get_in(
    ensemble: Ensemble, authority: Authority, tmp_path: Path
) -> None:
    """Though it says what the conductor's says, and though its holder trusts ours."""
    forged = Authority(tmp_path).issue(CONDUCTOR)
    forged = dataclasses.replace(forged, authority=authority.path)
    with pytest.raises(CoordinationLost, match="did not accept this daemon"):
        zookeeper.connect(ensemble.hosts, timeout=SESSION, protection=protection(forged))


def test_a_server_of_another_authority_is_not_spoken_to(ensemble: Ensemble, tmp_path: Path) -> None:
    own = Authority(tmp_path).issue(CONDUCTOR)
    with pytest.raises(CoordinationLost, match="certificate verify failed"):
        zookeeper.connect(ensemble.hosts, timeout=SESSION, protection=protection(own))


def test_a_server_whose_certificate_names_another_host_is_not_spoken_to(
    ensemble: Ensemble, authority: Authority
) -> None:
    """They are for localhost, not for its address."""
    own = protection(authority.issue(CONDUCTOR))
    with pytest.raises(CoordinationLost, match=r"not valid for '127\.0\.0\.1'"):
        zookeeper.connect(ensemble.hosts.replace("localhost", "127.0.0.1"), timeout=SESSION, protection=own)


def test_a_root_that_others_may_write_is_refused_at_start(site: Installation) -> None:
    """By both daemons, with one sentence, exit 2, and the line that mends it; nothing is changed."""
    for words, name, entry in (
        (("conductor", "run"), CONDUCTOR, OPEN_ACL_UNSAFE[0]),
        (("worker", "run", "--host", "host1"), "host1", make_acl("x509", "CN=host1", write=True, admin=True)),
    ):
        site.session.create(ROOT, b"")
        site.session.client.set_acls(ROOT, [entry, make_acl("x509", f"CN={CONDUCTOR}", all=True)])
        code, _, said = site.droveway(*words, **site.certified(name))
        assert code == 2, said
        who = f"{entry.id.scheme}:{entry.id.id}"
        assert f"droveway: in ZooKeeper {ROOT} may be written by {who} and not only by conductors" in said
        assert f"say 'deleteall {ROOT}' in zkCli.sh" in said
        assert "Traceback" not in said
        assert site.session.children(ROOT) == []
        site.session.delete(ROOT)


def test_a_certificate_of_somebody_else_is_refused_at_start(site: Installation) -> None:
    """A worker's for the conductor, another host's for a worker."""
    for words, name, wanted in (
        (("conductor", "run"), "host1", f"conductor_identity says CN={CONDUCTOR}"),
        (("worker", "run", "--host", "host1"), "host2", "worker_identity says CN=host1"),
    ):
        code, _, said = site.droveway(*words, **site.certified(name))
        assert code == 2, said
        assert f"is of CN={name}, and [zookeeper] {wanted}" in said
