"""Daemons whose every wire is TLS: whole moves over TCP, whichever end of a copy dies, and what may not start."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from support.daemons.daemons import CONDUCTOR, SESSION, Installation, installation, protection
from support.labs import snapshot
from support.labs.small_lab import assert_balanced, file_flow, history, in_child, read_move, small_cloud, until
from support.labs.snapshot import Snapshot
from support.servers import zookeeper_server
from support.servers.certificates import Authority

from droveway.clients.zookeeper import connect, page_path, query_path, worker_path
from droveway.errors import CoordinationLost
from droveway.lab import build
from droveway.persistence.journal.states import State
from droveway.wire import codec, commands

LONG: Final = 180.0
IMAGE_MB: Final = 768
"""A sixteenth of it is data."""


@pytest.fixture(scope="module", name="rest")
def fixture_rest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Snapshot]:
    folder = tmp_path_factory.mktemp("daemons")
    in_child(lambda: build.create(folder / "lab", small_cloud("host1", "host2", image_mb=IMAGE_MB)).close())
    yield snapshot.take(folder / "lab", folder / "kept")
    build.destroy(folder / "lab")


@pytest.fixture(name="site")
def fixture_site(
    rest: Snapshot, protected_zookeeper: zookeeper_server.Server, authority: Authority, tmp_path: Path
) -> Iterator[Installation]:
    lab = rest.restore()
    with installation(lab, tmp_path, protected_zookeeper.hosts, None, authority) as made:
        yield made
    lab.close()


def copied(site: Installation, move: str) -> int:
    """The bytes of the copy that are at the destination."""
    found = read_move(site.lab, move)
    return found.progress_done or 0 if found.step == "copy_disks" else 0


@pytest.mark.parametrize("host", ["host1", "host2"], ids=["source", "destination"])
def test_a_copy_over_tls_goes_on_where_it_was_when_either_end_died(site: Installation, host: str) -> None:
    """What the destination had synced is kept: `kept` is what the copy did not ask for again."""
    limited = {"OS_WORKER__TRANSFER_LIMIT_EACH": "6"}
    workers = {name: site.worker(name, **limited) for name in ("host1", "host2")}
    conductor = site.conductor()
    for name in workers:
        site.await_worker(name)
        found = site.session.get(worker_path(name))
        assert found is not None
        assert codec.decode(found[0], commands.Registration).address.startswith("tcp:127.0.0.1:")
    move = file_flow(site.lab, "migrate")
    until(lambda: copied(site, move) >= 24 << 20, "half of the copy", LONG)
    workers[host].kill()
    site.worker(host, **limited)
    if host == "host2":
        until(lambda: (read_move(site.lab, move).progress_kept or 0) >= 16 << 20, "what was kept", LONG)
    assert site.await_rest(move) == State.VERIFYING, conductor.text()
    [row] = [row for row in history(site.lab, move) if row.step == "copy_disks" and row.result]
    assert row.result is not None
    assert row.result["variant"] == "pull"
    assert_balanced(site.lab)
    file_flow(site.lab, "confirm")
    assert site.await_rest(move) == State.DONE
    assert_balanced(site.lab)


def test_a_worker_that_cannot_prove_who_it_is_does_not_listen(site: Installation, authority: Authority) -> None:
    listen = {"OS_WORKER__TRANSFER_LISTEN": "127.0.0.1:4790"}
    words = ("worker", "run", "--host", "host1")
    code, _, said = site.droveway(*words, **listen)
    assert code == 2
    assert "[worker] transfer_listen is given without [tls]" in said.splitlines()[-1]
    other = authority.issue("host1-other", names=("other.example",)).options()
    shown = {f"OS_TLS__{option.upper()}": value for option, value in other.items()}
    code, _, said = site.droveway(*words, **listen, **shown)
    assert code == 2
    assert "is not for host1, its DNS names are: other.example" in said.splitlines()[-1]
    code, _, said = site.droveway(*words, **site.certified("host1"), OS_WORKER__TRANSFER_LISTEN="4790")
    assert code == 2
    assert "'4790' is no NAME:PORT" in said.splitlines()[-1]


def test_an_audit_asks_hosts_by_the_certificate_of_a_conductor_alone(
    site: Installation, authority: Authority, protected_zookeeper: zookeeper_server.Server
) -> None:
    """A worker finds what it is asked, and answers; it asks nobody, and answers for no other host."""
    for host in ("host1", "host2"):
        site.worker(host)
    site.conductor()
    for host in ("host1", "host2"):
        site.await_worker(host)
    code, said, complained = site.droveway("audit", **site.certified(CONDUCTOR))
    assert (code, said, " 2 hosts," in complained) == (0, "", True), said + complained
    code, said, complained = site.droveway("audit", "-f", "json", **site.certified("host1"))
    told = {row["host"]: row["detail"] for row in json.loads(said)}
    assert (code, set(told)) == (3, {"host1", "host2"}), complained
    assert "[zookeeper] conductor_identity says CN=droveway-conductor" in told["host1"]

    worker = connect(protected_zookeeper.hosts, timeout=SESSION, protection=protection(authority.issue("host1")))
    try:
        assert worker.children(query_path("host1")) == []
        assert worker.create(page_path("host1", "x.0"), b"")
        assert worker.delete(page_path("host1", "x.0"))
        for path in (query_path("host1", "x"), query_path("host2", "x"), page_path("host2", "x.0")):
            with pytest.raises(CoordinationLost, match="lets others do this"):
                worker.create(path, b"")
        with pytest.raises(CoordinationLost, match="lets others do this"):
            worker.children(page_path("host2"))
    finally:
        worker.close()
