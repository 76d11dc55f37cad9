"""The units as they are shipped, under a real systemd: start, watchdog, restart, reload, stop in mid-move."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest
from support.daemons import unit_site
from support.daemons.unit_site import CONDUCTOR, CONFIGURATION, ETC, WORKERS
from support.labs.small_lab import assert_balanced, file_flow, is_released, read_move, until
from support.servers import zookeeper_server
from support.servers.systemd_machine import Machine

from droveway.lab.serve_settings import write
from droveway.lab.session import Lab
from droveway.persistence.journal import daemons
from droveway.persistence.journal.states import State

LONG: Final = 180.0


class Site:
    """The machine, and its lab as it is seen from here."""

    def __init__(self, made: Machine, lab: Lab, zookeeper: zookeeper_server.Server) -> None:
        self.machine = made
        self.lab = lab
        self.zookeeper = zookeeper

    def begin(self) -> str:
        """A resize that copies disks, once a conductor has seen the workers: no host that is down is chosen."""
        try:
            until(lambda: self._is_up() == {"host1": True, "host2": True}, "both workers", LONG)
        except AssertionError as missing:
            said = [self.machine.said(unit)[-2000:] for unit in (CONDUCTOR, *WORKERS.values())]
            raise AssertionError("\n".join([f"{missing}: {self._is_up()}", *said])) from None
        # Not by a command: the copy may be over by the time that its process has ended.
        move = file_flow(self.lab, "resize")
        until(lambda: read_move(self.lab, move).step == "copy_disks", "the copy", LONG)
        return move

    def _is_up(self) -> dict[str, bool]:
        with self.lab.journal.read() as session:
            return {worker.name: up for worker, up in daemons.listing(session, daemons.WORKER)}

    def end(self, move: str) -> None:
        """It comes to its end there, and the server back to where it was; the books balance."""
        for state in (State.VERIFYING, State.REVERTED):
            until(lambda: is_released(self.lab, move), "the end of the move", LONG)
            assert read_move(self.lab, move).state == state, self.machine.said(CONDUCTOR)[-4000:]
            assert_balanced(self.lab)
            if state == State.VERIFYING:
                self.machine.run("droveway", "move", "revert", move, "--config-file", CONFIGURATION)

    def restarts(self, unit: str) -> int:
        """How often systemd has started the unit again by itself."""
        return int(self.machine.shown(unit, "NRestarts"))

    def pid(self, unit: str) -> str:
        """The unit's main process, on the machine."""
        return self.machine.shown(unit, "MainPID")

    def await_active(self, unit: str) -> None:
        """The unit has said that it is ready."""
        until(lambda: self.machine.shown(unit, "ActiveState") == "active", unit, LONG)


@pytest.fixture(scope="module", name="site")
def fixture_site() -> Iterator[Site]:
    worker = (ETC / "systemd" / WORKERS["host1"]).read_text()
    files = {
        "/usr/lib/sysusers.d/droveway.conf": (ETC / "sysusers.d/droveway.conf").read_text(),
        f"/etc/systemd/system/{CONDUCTOR}": (ETC / "systemd" / CONDUCTOR).read_text(),
        f"/etc/systemd/system/{WORKERS['host1']}": worker,
        f"/etc/systemd/system/{WORKERS['host2']}": worker.replace("%H", "host2"),
    }
    with unit_site.prepared(files) as there:
        there.machine.run("systemd-sysusers")
        write(there.settings, there.shared / "droveway.conf")
        configuration = str(there.shared / "droveway.conf")
        there.machine.run("install", "-D", "-g", "droveway", "-m", "640", configuration, CONFIGURATION)
        there.let_the_units_in()
        there.machine.start(CONDUCTOR, *WORKERS.values())
        yield Site(there.machine, there.lab, there.zookeeper)


def test_the_units_run_and_a_move_goes_there_and_back(site: Site) -> None:
    """RC-07: systemd knows each of them to be ready, and watches it."""
    before = {unit: site.restarts(unit) for unit in (CONDUCTOR, *WORKERS.values())}
    for unit in before:
        assert site.machine.shown(unit, "ActiveState") == "active"
        assert site.machine.shown(unit, "WatchdogTimestampMonotonic") != "0"
    assert site.machine.run("stat", "-c", "%U", f"/proc/{site.pid(CONDUCTOR)}") == "droveway"
    site.end(site.begin())
    assert {unit: site.restarts(unit) for unit in before} == before


@pytest.mark.parametrize("unit", [CONDUCTOR, WORKERS["host1"], WORKERS["host2"]])
def test_a_killed_unit_comes_back_and_the_move_ends(site: Site, unit: str) -> None:
    before = site.restarts(unit)
    move = site.begin()
    site.machine.run("kill", "-KILL", site.pid(unit))
    site.end(move)
    assert site.restarts(unit) == before + 1


def test_a_unit_whose_loop_hangs_is_started_again(site: Site) -> None:
    """The watchdog, which only the loops feed, ends a conductor that stands still."""
    before = site.restarts(CONDUCTOR)
    move = site.begin()
    site.machine.run("kill", "-STOP", site.pid(CONDUCTOR))
    until(lambda: site.restarts(CONDUCTOR) == before + 1, "the watchdog", LONG)
    assert "Watchdog timeout" in site.machine.said(CONDUCTOR)
    site.end(move)


def test_units_that_are_up_before_zookeeper_try_until_that_answers(site: Site) -> None:
    """As after a power cut, when everything starts at once: no unit is given up, however often it could not start."""
    units = (CONDUCTOR, *WORKERS.values())
    site.machine.run("systemctl", "stop", *units)
    site.zookeeper.kill()
    before = {unit: site.restarts(unit) for unit in units}
    site.machine.run("systemctl", "start", "--no-block", *units)
    for unit in units:
        until(lambda tried=unit: site.restarts(tried) >= before[tried] + 2, f"another try of {unit}", LONG)
        assert "no ZooKeeper answers" in site.machine.said(unit)
        until(lambda tried=unit: site.machine.shown(tried, "ActiveState") == "activating", f"a try of {unit}", LONG)
        assert site.machine.shown(unit, "StartLimitIntervalUSec") == "0"
    site.zookeeper.start()
    for unit in units:
        site.await_active(unit)
    site.end(site.begin())


def test_a_reload_is_no_restart(site: Site) -> None:
    before = {unit: site.pid(unit) for unit in (CONDUCTOR, *WORKERS.values())}
    site.machine.run("systemctl", "reload", *before)
    site.end(site.begin())
    assert {unit: site.pid(unit) for unit in before} == before


def test_a_unit_that_is_stopped_in_the_middle_of_a_move_gives_it_back(site: Site) -> None:
    move = site.begin()
    site.machine.run("systemctl", "stop", CONDUCTOR)
    assert site.machine.shown(CONDUCTOR, "Result") == "success"
    assert read_move(site.lab, move).state == State.RUNNING
    site.machine.start(CONDUCTOR)
    site.end(move)
