"""A libvirt move under the units as they are shipped: what they close is nothing that a worker needs."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from support.daemons import unit_site
from support.daemons.unit_site import CONDUCTOR, CONFIGURATION, ETC, WORKERS, Prepared
from support.labs.small_lab import file_flow, is_released, read_move, until

from droveway.lab import daemons as hosts_of_lab
from droveway.lab.serve_settings import write
from droveway.persistence.journal import daemons
from droveway.persistence.journal.states import State

LONG = 180.0
_UNLOGGED = """
import re, sys, libvirt
domain, = libvirt.open(sys.argv[1]).listAllDomains()
text = re.sub("<log [^>]*/>", "", domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE))
domain.destroy()
domain.connect().defineXML(text).create()
"""
"""Lets a guest's line be logged nowhere: a lab's daemons run as nobody, who makes no file in a worker's directory."""


@pytest.fixture(scope="module", name="site")
def fixture_site() -> Iterator[Prepared]:
    worker = (ETC / "systemd" / WORKERS["host1"]).read_text()
    files = {
        "/usr/lib/sysusers.d/droveway.conf": (ETC / "sysusers.d/droveway.conf").read_text(),
        f"/etc/systemd/system/{CONDUCTOR}": (ETC / "systemd" / CONDUCTOR).read_text(),
        f"/etc/systemd/system/{WORKERS['host1']}": worker,
        f"/etc/systemd/system/{WORKERS['host2']}": worker.replace("%H", "host2"),
    }
    with unit_site.prepared(files, hypervisor="libvirt") as there:
        there.machine.run("systemd-sysusers")
        write(there.settings, there.shared / "droveway.conf")
        configuration = str(there.shared / "droveway.conf")
        there.machine.run("install", "-D", "-g", "droveway", "-m", "640", configuration, CONFIGURATION)
        there.let_the_units_in()
        # What is the daemons' own, root's run as this user.
        theirs = "*/libvirt */consoles */instances/*-*"
        there.machine.run("sh", "-c", f"cd {there.lab.layout.hosts} && chown -R nobody:nogroup {theirs}")
        uri = hosts_of_lab.host(there.lab.layout, there.lab.identity, "host1").uri
        there.machine.run(sys.executable, "-c", _UNLOGGED, uri)
        there.machine.start(CONDUCTOR, *WORKERS.values())
        yield there


def _said(site: Prepared) -> str:
    return "\n".join(site.machine.said(unit)[-3000:] for unit in (CONDUCTOR, *WORKERS.values()))


def test_a_libvirt_move_goes_there_and_back_under_the_units(site: Prepared) -> None:
    """S15: filters of system calls, capabilities and file systems, with a real QEMU guest on the way."""

    def up() -> dict[str, bool]:
        with site.lab.journal.read() as session:
            return {worker.name: there for worker, there in daemons.listing(session, daemons.WORKER)}

    until(lambda: up() == {"host1": True, "host2": True}, "both workers", LONG)
    for unit in WORKERS.values():
        assert site.machine.shown(unit, "NoNewPrivileges") == "yes"
        assert site.machine.shown(unit, "SystemCallFilter") != ""
    move = file_flow(site.lab, "resize")
    for state in (State.VERIFYING, State.REVERTED):
        try:
            until(lambda: is_released(site.lab, move), "the end of the move", LONG)
        except AssertionError as late:
            raise AssertionError(f"{late}: {read_move(site.lab, move).step}: {_said(site)}") from None
        assert read_move(site.lab, move).state == state, _said(site)
        if state == State.VERIFYING:
            site.machine.run("droveway", "move", "revert", move, "--config-file", CONFIGURATION)
