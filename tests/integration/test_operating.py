"""Operating an installation: what its daemons are known by, freezes, drains, and hosts that die; on real daemons."""

from __future__ import annotations

import json
from typing import Final

import pytest
import sqlalchemy as sa
from support.daemons.daemons import LONG, Daemon, Installation
from support.labs.small_lab import SERVER, assert_balanced, read_move, until
from support.servers import mariadb_server, postgres_server

from droveway.clients.zookeeper import BOARD, worker_path
from droveway.engines.conductor import eligibility
from droveway.flows import registry
from droveway.persistence.journal import daemons, debt_views, moves, requests
from droveway.persistence.journal.states import State
from droveway.persistence.journal.tables import Claim
from droveway.persistence.nova import catalog
from droveway.wire import codec, commands
from droveway.wire.values import ACTION_VERSION

SERVERS: Final = {"postgresql": postgres_server, "mariadb": mariadb_server}
SURE: Final = "power is off, ticket 4711"


def create(site: Installation, *options: str) -> str:
    """Ask for the server's resize; the move's id."""
    site.done("move", "create", SERVER, "--flavor", "large", *options)
    (move,) = site.told("move", "list")
    return str(move["id"])


def states(site: Installation) -> dict[str, str]:
    """Each worker's, as `worker list` reads it: a command for each look would take all of the machine."""
    with site.lab.journal.read() as session:
        return {row.name: "up" if up else "down" for row, up in daemons.listing(session, daemons.WORKER)}


def version_of(site: Installation, host: str) -> str:
    """The release of the host's worker, as the journal knows it."""
    with site.lab.journal.read() as session:
        return daemons.find(session, daemons.WORKER, host)[0].version


@pytest.mark.parametrize("site", ["mariadb"], indirect=True)
def test_daemons_are_listed_while_they_are_up_and_after(site: Installation) -> None:
    """A worker that is gone is down, with since when; one that is back is up; a conductor that ended says so."""
    workers = {host: site.worker(host) for host in ("host1", "host2")}
    assert site.told("worker", "list") == []
    conductor = site.conductor()
    until(lambda: states(site) == {"host1": "up", "host2": "up"}, "both workers")
    assert {row["host"]: row["state"] for row in site.told("worker", "list")} == states(site)
    shown = site.told("worker", "show", "host1")
    assert shown["pid"] == workers["host1"].process.pid
    assert "copy_disks@1" in shown["actions"]
    (listed,) = site.told("conductor", "list")
    assert (listed["state"], listed["pid"]) == ("up", conductor.process.pid)
    assert {"resize@1", "confirm@1"} <= set(site.told("conductor", "show", listed["name"])["flows"])

    workers["host2"].kill()
    until(lambda: states(site) == {"host1": "up", "host2": "down"}, "the end of a worker")
    down = site.told("worker", "show", "host2")
    assert down["since"] > shown["since"]
    again = site.worker("host2")
    until(lambda: states(site)["host2"] == "up", "the worker's return")
    assert site.told("worker", "show", "host2")["pid"] == again.process.pid

    conductor.stop()
    (listed,) = site.told("conductor", "list")
    assert listed["state"] == "down"
    code, _, complained = site.droveway("worker", "list")
    assert (code, complained) == (0, "warning: no conductor is up, so this is what the last one saw\n")


def test_a_daemon_that_nobody_knows_is_refused(site: Installation) -> None:
    for noun in ("worker", "conductor"):
        code, _, said = site.droveway(noun, "show", "nobody")
        assert (code, f"{noun} nobody is unknown: droveway {noun} list" in said) == (2, True), said


@pytest.mark.parametrize("site", ["postgresql"], indirect=True)
def test_hosts_plans_and_books_of_an_installation(site: Installation) -> None:
    """Every command that labs have works on an installation too; the audit names the hosts that it could not see."""
    worker = site.worker("host1")
    site.worker("host2")
    site.conductor()
    until(lambda: states(site) == {"host1": "up", "host2": "up"}, "both workers")
    assert {row["name"]: row["state"] for row in site.told("host", "list")} == {
        "host1": "up",
        "host2": "up",
        "host3": "down",
    }
    plan = site.told("move", "plan", "web", "--flavor", "large")
    assert (plan["destination"], plan["alternates"], plan["storage"], plan["bytes"]) == ("host2", [], "unknown", None)
    assert {"host3 is left out: it is down"} <= {check["detail"] for check in plan["checks"]}
    assert site.droveway("move", "plan", "web")[0] == 0

    assert site.droveway("host", "disable", "host2", "--reason", "its disk is slow")[0] == 0
    shown = site.told("host", "show", "host2")
    assert (shown["status"], shown["disabled_reason"]) == ("disabled", "its disk is slow")
    code, _, said = site.droveway("move", "create", "web", "--flavor", "large", "--from-plan", plan["id"])
    assert (code, "no host" in said) == (2, True), said
    assert site.droveway("host", "enable", "host2")[0] == 0
    assert site.told("host", "show", "host2")["status"] == "enabled"

    worker.kill()
    until(lambda: states(site)["host1"] == "down", "the end of a worker")
    code, _, said = site.droveway("move", "create", "web", "--flavor", "large")
    assert (code, "host1" in said) == (2, True), said
    assert site.told("debt", "list") == []
    code, said, complained = site.droveway("audit", "-f", "json")
    assert (code, "2 findings\nnot compared: images\n" in complained) == (3, True), complained
    why = "could not be looked at, so what it holds was not compared: no worker of it is up"
    assert [(row["kind"], row["detail"]) for row in json.loads(said)] == [
        ("host", f"{host} {why}") for host in ("host1", "host3")
    ]


def await_workers(site: Installation, *hosts: str) -> None:
    """Wait until these are known to be up, and no others."""
    until(
        lambda: {host for host, state in states(site).items() if state == "up"} == set(hosts),
        "what is known of the workers",
        LONG,
    )


def register_old(site: Installation, host: str) -> None:
    """A worker that knows no copying, as one of an older release; gone with the session of this test."""
    actions = sorted(eligibility.needed() - {f"copy_disks@{ACTION_VERSION}"})
    old = commands.Registration(host=host, version="0.0.1", hypervisor="sandbox", actions=actions, address="unix:/none")
    assert site.session.create(worker_path(host), codec.encode(old), ephemeral=True)


def kept_aside(site: Installation) -> bool:
    """Whether the source still has what it set aside."""
    server = catalog.find_server(site.lab.api, site.lab.cell_databases, SERVER)
    return (site.lab.layout.host("host1") / "instances" / f"{server.id}_resize").is_dir()


def test_nothing_is_claimed_and_nothing_deleted_while_it_is_frozen(site: Installation) -> None:
    """A move that is under way parks before it deletes the source's copy, says why, and goes on by itself."""
    site.worker("host1")
    destination = site.worker("host2")
    conductor = site.conductor(OS_CONDUCTOR__HOST_AWAY="300")
    assert site.droveway("freeze", "list")[2] == "nothing is frozen\n"
    said = site.done("freeze", "--reason", "the network is being changed")
    assert said == "everything is frozen: no move is claimed and nothing deleted until  droveway thaw\n"
    move = create(site)
    shown = site.told("move", "show", move)
    assert shown["state"] == "queued"
    assert "everything is frozen by" in shown["waits_for"]
    assert "(the network is being changed): droveway thaw ends that" in shown["waits_for"]
    said = site.done("freeze", "--cell", "cell1")
    assert said == "cell cell1 is frozen: no move is claimed and nothing deleted until  droveway thaw --cell cell1\n"
    assert [row["scope"] for row in site.told("freeze", "list")] == ["all", "cell"]
    assert site.done("thaw") == "the freeze of everything has ended\n"
    assert "cell cell1 is frozen by" in site.told("move", "show", move)["waits_for"]
    assert (site.session.children(BOARD), read_move(site.lab, move).state) == ([], State.QUEUED)
    site.done("thaw", "--cell", "cell1")
    assert site.await_rest(move) == State.VERIFYING, conductor.text()

    destination.kill()
    site.done("move", "confirm", move)
    until(lambda: read_move(site.lab, move).step == "check_destination_copy", "the confirm's first question", LONG)
    site.done("freeze", "--host", "host1")
    site.worker("host2")
    until(lambda: "waits: host host1 is frozen by" in conductor.text(), "that the confirm parks", LONG)
    until(lambda: site.session.children(BOARD) == [], "that the flow is taken off the board", LONG)
    assert (read_move(site.lab, move).state, kept_aside(site)) == (State.CONFIRMING, True)
    assert "host host1 is frozen by" in site.told("move", "show", move)["waits_for"]
    site.done("thaw", "--host", "host1")
    assert site.await_rest(move) == State.DONE, conductor.text()
    assert not kept_aside(site)
    code, _, said = site.droveway("thaw")
    assert (code, "everything is not frozen: droveway freeze list" in said) == (2, True), said


def test_no_server_goes_to_a_host_whose_worker_is_drained_or_too_old(site: Installation) -> None:
    """R4-16: the host is left out with its reason, at the submit and by a conductor; an old source is refused."""
    source = site.worker("host1")
    site.worker("host2")
    register_old(site, "host3")
    conductor = site.conductor()
    await_workers(site, "host1", "host2", "host3")
    plan = site.told("move", "plan", SERVER, "--flavor", "large")
    assert (plan["destination"], plan["alternates"]) == ("host2", [])
    left_out = [check["detail"] for check in plan["checks"] if not check["ok"]]
    old = "host3 is left out: its worker (0.0.1) does not know copy_disks@1: upgrade it first"
    assert old in left_out

    site.done("freeze")
    move = create(site)
    said = site.done("worker", "drain", "host2", "--reason", "its disk is slow")
    assert said == "the worker of host host2 is drained: it is no destination of new moves\n"
    site.done("thaw")
    assert site.await_rest(move) == State.FAILED, conductor.text()
    drained = "its worker is drained (its disk is slow)"
    assert drained in str(site.told("move", "show", move)["error"])
    code, _, said = site.droveway("move", "plan", SERVER, "--flavor", "large")
    assert (code, drained in said) == (2, True), said
    said = site.done("worker", "drain", "host2", "--off")
    assert said == "the worker of host host2 is no longer drained: new moves may go there again\n"
    assert site.told("move", "plan", SERVER, "--flavor", "large")["destination"] == "host2"

    source.stop()
    until(lambda: site.session.get(worker_path("host1")) is None, "the end of the source's worker", LONG)
    register_old(site, "host1")
    until(lambda: version_of(site, "host1") == "0.0.1", "what is known of it", LONG)
    code, _, said = site.droveway("move", "create", SERVER, "--flavor", "large")
    assert (code, "host1 cannot take part in a move: its worker (0.0.1) does not know copy_disks@1" in said) == (
        2,
        True,
    ), said


def is_given_back(site: Installation, move: str) -> bool:
    """Whether no conductor has the move."""
    with site.lab.journal.read() as session:
        return session.scalar(sa.select(Claim.released_at).where(Claim.move_id == move)) is not None


def die_over_the_copy(site: Installation, workers: dict[str, Daemon], move: str) -> str:
    """Kill the worker of the destination once something lies there, before the guest is started; the host."""
    site.await_step(move, "check_destination")
    with site.lab.journal.write() as session:
        requests.pause(session, moves.get(session, move, lock=True))
    until(lambda: is_given_back(site, move), "that the move is held", LONG)
    held = read_move(site.lab, move)
    assert held.step_number < registry.latest("resize").names().index("start_guest") + 1
    workers[str(held.dest_host)].kill()
    site.done("move", "resume", move)
    return str(held.dest_host)


def test_a_destination_that_dies_before_the_point_of_no_return_is_left_and_owes(site: Installation) -> None:
    """The move goes elsewhere; nobody forgets a host that may be up; it settles what it owes when it is back."""
    workers = site.workers()
    conductor = site.conductor(OS_CONDUCTOR__HOST_AWAY="1")
    until(lambda: states(site), "what is known of the workers", LONG)
    assert "the worker of host host2 is registered, so the host is not off" in site.refused(
        "host", "down", "host2", "--i-made-sure", SURE
    )
    move = create(site)
    dead = die_over_the_copy(site, workers, move)
    assert site.await_rest(move) == State.VERIFYING, conductor.text()
    assert read_move(site.lab, move).dest_host not in (dead, "host1")

    debts = site.told("debt", "list")
    assert {(row["host"], row["state"], row["server_name"]) for row in debts} == {(dead, "owed", SERVER)}
    assert f"droveway host forget {dead}" in site.told("debt", "show", str(debts[0]["id"]))["next"]
    assert "nobody has made sure that host" in site.refused("host", "forget", dead)
    site.done("host", "down", dead, "--i-made-sure", SURE)
    shown = site.told("host", "show", dead)
    assert (shown["state"], shown["status"], shown["disabled_reason"]) == ("down", "disabled", SURE)

    site.done("host", "enable", dead)
    site.done("move", "revert", move)
    assert site.await_rest(move) == State.REVERTED, conductor.text()
    site.done("freeze")
    site.worker(dead)
    await_workers(site, "host1", "host2", "host3")
    plan = site.told("move", "plan", SERVER, "--flavor", "large")
    owing = f"{dead} is left out: it still owes a clean-up: droveway debt list --host {dead}"
    assert owing in [check["detail"] for check in plan["checks"]]
    assert site.told("debt", "list") == debts
    site.done("thaw")
    until(lambda: debt_views.listing(site.lab.journal) == [], "that the host settles what it owes", LONG)
    assert site.told("debt", "list") == []
    assert_balanced(site.lab)


def test_what_a_dead_host_owes_is_written_off(site: Installation) -> None:
    workers = site.workers()
    conductor = site.conductor(OS_CONDUCTOR__HOST_AWAY="1")
    move = create(site)
    dead = die_over_the_copy(site, workers, move)
    assert site.await_rest(move) == State.VERIFYING, conductor.text()
    conductor.stop()
    assert "no conductor is up, so nobody knows" in site.refused("host", "down", dead, "--i-made-sure", SURE)
    site.conductor()
    site.done("host", "down", dead, "--i-made-sure", SURE)
    debts = site.told("debt", "list")
    said = site.done("host", "forget", dead).splitlines()
    assert said[0] == f"host {dead}: {len(debts)} debt{'s' * (len(debts) != 1)} written off"
    assert site.told("debt", "list") == []


def test_a_move_waits_for_a_source_that_dies_after_the_point_of_no_return(site: Installation) -> None:
    """It says for whom; a person's confirm is refused; with the host back, what is due is done."""
    workers = site.workers()
    conductor = site.conductor()
    move = create(site, "--deadline", "8")
    until(lambda: read_move(site.lab, move).state == State.VERIFYING, "the end of the resize", LONG)
    workers["host1"].kill()
    until(lambda: "the worker of host host1 is away" in str(read_move(site.lab, move).waits_for), "the wait", LONG)
    assert "the worker of host host1 is away" in site.told("move", "show", move)["waits_for"]
    assert "host1" in site.refused("move", "confirm", move)
    site.worker("host1")
    until(lambda: read_move(site.lab, move).state == State.DONE, conductor.text(), LONG)
    site.await_rest(move)
    assert_balanced(site.lab)
