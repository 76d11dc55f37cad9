"""The doctor on a running installation: real ZooKeeper, services behind HTTP, daemons."""

from __future__ import annotations

import configparser
import json

import pytest
import sqlalchemy as sa
from support.daemons.daemons import Installation
from support.labs.small_lab import file_flow, small_cloud, until
from support.servers import zookeeper_server

from droveway.clients.network import BINDING_EXTENDED
from droveway.clients.zookeeper import ROOT, worker_path
from droveway.lab import cloud

EXPECTED = {"zookeeper-alone", "zookeeper-open", "certificate-none"}
"""What is found of any installation of these tests."""


@pytest.fixture(scope="module", name="cloud")
def fixture_cloud() -> cloud.Cloud:
    return small_cloud("host1", "host2")


def findings(site: Installation, code: int) -> dict[tuple[str, str], str]:
    """What the doctor found, with the detail; its exit code is asserted."""
    ended, said, complained = site.droveway("doctor", "-f", "json")
    assert ended == code, said + complained
    rows = json.loads(said)
    assert all(row["mend"] and row["detail"] for row in rows)
    found = {(row["finding"], row["subject"]): row["detail"] for row in rows if row["level"] != "ok"}
    assert {row["subject"] for row in rows} >= {
        "journal",
        "api",
        "cell cell1",
        "clock",
        "placement",
        "neutron",
        "cinder",
    }
    return found


def configure(site: Installation, group: str, **options: str) -> None:
    """Change the configuration."""
    written = configparser.ConfigParser(interpolation=None)
    written.read(site.configuration)
    if not written.has_section(group):
        written.add_section(group)
    written[group].update(options)
    with site.configuration.open("w") as file:
        written.write(file)


def test_an_installation_that_runs_is_well_but_for_what_it_does_not_guard(site: Installation) -> None:
    site.workers()
    conductor = site.conductor()
    until(lambda: site.session.get(ROOT), "the root")
    assert {code for code, _ in findings(site, 1)} == EXPECTED
    conductor.stop()


def test_what_is_missing_is_named(site: Installation) -> None:
    """A host is missing until somebody declares it down."""
    workers = site.workers()
    conductor = site.conductor()
    workers["host2"].stop()
    assert ("worker-away", "host2") in findings(site, 1)
    until(lambda: site.told("worker", "list")[1]["state"] == "down", "that the host is seen as down")
    site.done("host", "down", "host2", "--i-made-sure", "it burnt")
    assert {code for code, _ in findings(site, 1)} == EXPECTED
    site.done("host", "enable", "host2")
    conductor.stop()
    with site.lab.journal.write() as session:
        session.execute(sa.text("UPDATE alembic_version SET version_num = '0001'"))
    configure(site, "neutron", endpoint_override="http://127.0.0.1:1/")
    found = findings(site, 2)
    assert {
        ("worker-away", "host2"),
        ("schema-other", "journal"),
        ("service-away", "neutron"),
    } <= set(found)
    assert "droveway db sync" in found["schema-other", "journal"]
    assert {code for code, _ in found} == {*EXPECTED, "worker-away", "schema-other", "service-away"}


def test_a_neutron_that_binds_no_port_to_two_hosts_is_named(site: Installation) -> None:
    site.workers()
    site.lab.cloud.set_extension(BINDING_EXTENDED, missing=True)
    assert "lacks the extension binding-extended" in findings(site, 2)["extension-missing", "neutron"]
    site.lab.cloud.set_extension(BINDING_EXTENDED, missing=False)
    assert ("extension-missing", "neutron") not in findings(site, 1)


def test_a_worker_that_cannot_do_what_moves_ask_is_named(site: Installation) -> None:
    old = {"host": "host1", "version": "0.0.1", "hypervisor": "sandbox", "actions": ["start_guest@0"], "address": "x"}
    site.session.create(worker_path("host1"), json.dumps(old).encode(), ephemeral=True)
    site.session.create(worker_path("host2"), b"nonsense", ephemeral=True)
    found = findings(site, 2)
    assert "start_guest@1" in found["worker-lacks", "host1"]
    assert ("worker-untrue", "host2") in found


def test_a_server_of_the_ensemble_that_is_away_is_named(site: Installation, zookeeper: zookeeper_server.Server) -> None:
    configure(site, "zookeeper", hosts=f"{zookeeper.hosts},127.0.0.1:1")
    found = findings(site, 1)
    assert ("zookeeper-member-away", "127.0.0.1:1") in found
    assert "zookeeper-alone" not in {code for code, _ in found}


def test_a_move_that_nobody_runs_is_stuck_and_the_doctor_is_advised(site: Installation) -> None:
    move = file_flow(site.lab, "resize")
    assert site.droveway("move", "list", "--stuck", "-f", "json")[:2] == (0, "[]\n")
    with site.lab.journal.write() as session:
        session.execute(sa.text("UPDATE moves SET updated_at = '2026-01-01 00:00:00.000000'"))
    code, said, _ = site.droveway("move", "list", "--stuck", "-f", "json")
    (row,) = json.loads(said)
    assert (code, row["id"]) == (0, move)
    assert row["why"].startswith("no progress for ")
    code, said, _ = site.droveway("move", "show", move, "-f", "value", "-c", "next")
    told = "no conductor is up, so nobody takes it: systemctl start droveway-conductor (droveway conductor list)"
    assert said.endswith(f"{told}\n")
    assert site.droveway("move", "list", "--stuck", "--for", "365d", "-f", "json")[:2] == (0, "[]\n")
