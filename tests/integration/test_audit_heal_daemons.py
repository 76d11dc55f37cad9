"""`audit --heal` on an installation: its services, what was written off on its hosts, and what holds moves back."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import threading

import pytest
import sqlalchemy as sa
from support.daemons.daemons import LONG, Installation
from support.labs.small_lab import SERVER, history, read_move, until

from droveway.engines.operations.submit import MoveSpec, submit
from droveway.persistence.database import database_time
from droveway.persistence.journal import daemons, orphans
from droveway.persistence.journal.debts import WRITTEN_OFF
from droveway.persistence.journal.states import State
from droveway.persistence.journal.tables import Debt, Move
from droveway.persistence.nova import catalog

NOTHING = {"definition": "", "vcpus": 0, "memory_mb": 0, "disk_bytes": 0}


def write_off(site: Installation, move: str, host: str) -> None:
    """Let the host have owed what its worker undoes of a check of it as destination, until that was written off."""
    with site.lab.journal.write() as session:
        flow = orphans.first_flow(session, move)
        details = {"flow": flow, "step": "check_destination", "sequence": 1, "deadline": LONG}
        details |= {"details": NOTHING | {"probe": f"droveway-probe-{move}"}, WRITTEN_OFF: "ana"}
        at = database_time(session)
        session.add(
            Debt(
                host=host,
                move_id=move,
                action="check_destination",
                details=details,
                created_at=at,
                settled_at=at,
            )
        )


@pytest.mark.parametrize("site", ["postgresql"], indirect=True)
def test_what_an_ended_move_left_is_taken_away_by_services_and_workers(site: Installation) -> None:
    """Placement, a port and a host's disk, of a move that went from host1; the one on host1 lives elsewhere now."""
    hosts = list(site.workers())
    site.conductor()
    with site.lab.journal.read() as session:
        until(lambda: not daemons.known_workers(session).away(hosts), "all workers", LONG)
    site.done("move", "create", SERVER, "--to-host", "host2", "--confirm", "auto")
    (listed,) = site.told("move", "list")
    move = str(listed["id"])
    until(lambda: read_move(site.lab, move).state == State.DONE, "the move's end", LONG)
    site.await_rest(move)

    (server,) = catalog.servers(site.lab.api, site.lab.cell_databases)
    network, placement = site.lab.cloud.network, site.lab.cloud.placement
    (port,) = network.ports(server.id)
    network.ensure_binding(port.id, "host1", {})
    node = site.told("host", "show", "host1")["node"]
    held = placement.allocations(server.id)
    owner = {"project_id": held.project_id, "user_id": held.user_id}
    placement.ensure_allocation(move, {node: {"VCPU": 1, "MEMORY_MB": 256}}, **owner)
    part = site.lab.layout.host("host1") / "instances" / f"{server.id}.part-{move}-host1"
    part.mkdir()
    (part / "disk").write_bytes(b"half")
    write_off(site, move, "host1")

    code, said, complained = site.droveway("audit", "--heal", "-f", "json")
    plan = {(row["kind"], row["host"]): row["heal"] for row in json.loads(said)}
    # What lies on the disk goes with what the host owed.
    leaves = {("allocation", "host1"): "leave", ("disk", "host1"): "leave"}
    assert plan == {("host", "host1"): "mend", ("binding", "host1"): "mend"} | leaves, said
    assert (code, "nothing was changed: droveway audit --heal --yes" in complained) == (3, True)
    assert part.exists()
    assert network.ports(server.id)[0].bindings == {"host1": "INACTIVE", "host2": "ACTIVE"}

    code, _, complained = site.droveway("audit", "--heal", "--yes")
    assert (code, "3 findings before, 1 after" in complained) == (3, True), complained
    assert not part.exists()
    assert network.ports(server.id)[0].bindings == {"host2": "ACTIVE"}
    assert placement.allocations(move).allocations != {}
    code, _, complained = site.droveway("audit", "--heal", "--yes")
    assert (code, "1 finding before, 0 after" in complained) == (0, True), complained
    assert placement.allocations(move).allocations == {}
    assert placement.allocations(server.id).allocations == held.allocations
    healed = [(step.result or {}).get("outcome") for step in history(site.lab, move) if step.step == orphans.STEP]
    assert healed == ["done", "owed", "done"]


@pytest.mark.parametrize("site", ["postgresql", "mariadb"], indirect=True)
def test_a_move_waits_while_something_of_its_server_is_taken_away(site: Installation) -> None:
    """On each database the move that is asked for waits for the transaction; one that is under way keeps its server.

    So it is for a server that no move ever had, too.
    """
    lab = site.lab
    (server,) = catalog.servers(lab.api, lab.cell_databases)

    def hold(ended: str | None) -> contextlib.AbstractContextManager[orphans.Hold]:
        if ended is None:
            return orphans.hold_unmoved(lab.journal, server.id, SERVER)
        return orphans.hold(lab.journal, ended)

    ended: str | None = None
    for _ in range(2):
        began: list[str] = []
        asked = threading.Thread(
            target=lambda began=began: began.append(submit(lab, MoveSpec(server=SERVER, flavor="large", host=None)).id)
        )
        with hold(ended):
            asked.start()
            # Long enough for one that does not wait.
            asked.join(1.0)
            assert began == []
        asked.join()
        with pytest.raises(orphans.Held, match="is under way"), hold(ended):
            pytest.fail("it holds a server that a move has")
        with lab.journal.read() as session:
            assert session.scalars(sa.select(Move.id).where(Move.active_server == server.id)).all() == began
        site.done("move", "cancel", began[0])
        ended = began[0]


@pytest.mark.parametrize("site", ["postgresql", "mariadb"], indirect=True)
def test_a_holder_that_is_killed_leaves_nothing(site: Installation) -> None:
    """The server of a dead holder, which no move ever had, moves like any other."""
    lab = site.lab
    (server,) = catalog.servers(lab.api, lab.cell_databases)
    lab.journal.close()

    def hold_and_die() -> None:
        with orphans.hold_unmoved(lab.journal, server.id, SERVER):
            os.kill(os.getpid(), signal.SIGKILL)

    child = multiprocessing.get_context("fork").Process(target=hold_and_die)
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    move = submit(lab, MoveSpec(server=SERVER, flavor="large", host=None)).id
    with lab.journal.read() as session:
        assert session.scalars(sa.select(Move.id)).all() == [move]
