"""When ZooKeeper is spoken to through TLS, and what each node is made with."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.servers.certificates import Authority

from droveway.clients import access
from droveway.clients.access import Access, Protection
from droveway.clients.zookeeper import (
    BOARD,
    ROOT,
    command_path,
    epoch_path,
    host_path,
    page_path,
    query_path,
    record_path,
    result_path,
    worker_path,
)
from droveway.conf import settings
from droveway.errors import Refused

Options = dict[str, str]

BEYOND = {"hosts": "127.0.0.1:2181,zk2.example:2181"}


@pytest.fixture(name="certificate")
def fixture_certificate(tmp_path: Path) -> Options:
    """The group ``[tls]`` of a conductor."""
    return Authority(tmp_path / "pki").issue("droveway-conductor").options()


def protection(folder: Path, zookeeper: Options, tls: Options, host: str | None = None) -> Protection | None:
    """What a daemon does with these options."""
    path = folder / "droveway.conf"
    lines = [
        f"[{group}]\n{name} = {value}\n"
        for group, options in (("zookeeper", zookeeper), ("tls", tls))
        for name, value in options.items()
    ]
    path.write_text("".join(lines))
    return access.protection(settings.load(path), host)


@pytest.mark.parametrize("hosts", ["127.0.0.1:2181", "localhost:1,127.0.0.9:2", "[::1]:2181", "localhost:1/chroot"])
def test_a_zookeeper_of_this_machine_alone_needs_no_tls(tmp_path: Path, certificate: Options, hosts: str) -> None:
    """Unless it is asked for.  A certificate may be there for transfers alone, but then that is said."""
    assert protection(tmp_path, {"hosts": hosts}, {}) is None
    assert protection(tmp_path, {"hosts": hosts, "tls": "false"}, certificate) is None
    assert protection(tmp_path, {"hosts": hosts, "tls": "true"}, certificate) is not None
    with pytest.raises(Refused, match=r"\[tls\] is empty and \[zookeeper\] tls is true: give certificate"):
        protection(tmp_path, {"hosts": hosts, "tls": "true"}, {})


@pytest.mark.parametrize("host", [None, "droveway-conductor"])
@pytest.mark.parametrize("hosts", ["127.0.0.1:2181", "localhost:1,127.0.0.9:2"])
def test_where_there_are_certificates_no_user_of_the_machine_commands_hosts_unsaid(
    tmp_path: Path, certificate: Options, hosts: str, host: str | None
) -> None:
    """Neither a conductor nor a worker starts, and the refusal says what the option gives away."""
    with pytest.raises(Refused) as caught:
        protection(tmp_path, {"hosts": hosts}, certificate, host)
    assert f"[tls] is given, and ZooKeeper at {hosts} is on this machine" in str(caught.value)
    assert "set [zookeeper] tls = true, or false to let every user of this machine command all hosts" in str(
        caught.value
    )


def test_what_others_could_listen_to_goes_through_tls_unless_it_is_said_otherwise(
    tmp_path: Path, certificate: Options
) -> None:
    found = protection(tmp_path, BEYOND, certificate)
    assert found is not None
    assert found.identity.subject == found.access.conductor == "CN=droveway-conductor"
    with pytest.raises(Refused, match=r"\[tls\] is empty and ZooKeeper at zk2\.example is beyond this machine: give"):
        protection(tmp_path, BEYOND, {})
    assert protection(tmp_path, {**BEYOND, "tls": "false"}, {}) is None


def test_a_daemon_has_the_certificate_by_which_it_is_known(tmp_path: Path, certificate: Options) -> None:
    with pytest.raises(Refused, match=r"is of CN=droveway-conductor, and \[zookeeper\] worker_identity says CN=host1"):
        protection(tmp_path, BEYOND, certificate, "host1")
    with pytest.raises(
        Refused, match=r"is of CN=droveway-conductor, and \[zookeeper\] conductor_identity says CN=boss"
    ):
        protection(tmp_path, {**BEYOND, "conductor_identity": "CN=boss"}, certificate)
    known = {**BEYOND, "worker_identity": "CN=droveway-{host}"}
    assert protection(tmp_path, known, certificate, "conductor") is not None


def test_who_may_do_what() -> None:
    """The lists as zkCli.sh would write them."""
    found = Access("CN=boss,O=example", "CN={host},O=example")
    boss, host1, anyone = "x509:CN=boss,O=example:31", "x509:CN=host1,O=example", "world:anyone:1"
    for path, wanted in {
        ROOT: [boss, anyone],
        BOARD: [boss],
        f"{BOARD}/flow": [boss],
        f"{ROOT}/moves/m": [boss],
        epoch_path("m"): [boss, anyone],
        record_path("m"): [boss],
        host_path("host1"): [boss],
        command_path("host1"): [boss, f"{host1}:1"],
        command_path("host1", "k"): [boss, f"{host1}:1"],
        result_path("host1"): [boss, f"{host1}:13"],
        result_path("host1", "k"): [boss, f"{host1}:3"],
        query_path("host1"): [boss, f"{host1}:1"],
        query_path("host1", "k"): [boss, f"{host1}:1"],
        page_path("host1"): [boss, f"{host1}:13"],
        page_path("host1", "k.0"): [boss, f"{host1}:3"],
        worker_path("host1"): [boss, f"{host1}:3"],
        f"{ROOT}/hosts/host1/other": [boss],
    }.items():
        assert [f"{each.id.scheme}:{each.id.id}:{each.perms}" for each in found.of(path)] == wanted, path
