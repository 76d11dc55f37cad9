"""What a host has to show before another host deletes its copy, as it owes: its own copy of the server's disks."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
import sqlalchemy as sa
from support.rigs.answering_hosts import AnsweringHosts
from support.rigs.valid_answers import VALID
from support.rows.moving_rows import DESTINATION, FLOW, MIB, MOVE, NOW, SOURCE, Moving, disk, guest

from droveway.clients.zookeeper import worker_path
from droveway.engines.conductor import incarnation
from droveway.engines.conductor.owed import Owed
from droveway.engines.keeper import returning
from droveway.engines.keeper.debts import Collector
from droveway.engines.keeper.returning import FindHome
from droveway.persistence.journal import debts
from droveway.persistence.journal.tables import Claim, Debt, MoveFlow
from droveway.persistence.nova.base import CellBase
from droveway.persistence.nova.cell import Instance
from droveway.wire import codec, commands
from droveway.wire.commands import GuestState
from droveway.wire.values import ACTION_VERSION

WHOLE: Final = guest(disk("disk", 5 * MIB))
ASIDE: Final = guest(set_aside=True)
BOTH: Final = guest(disk("disk", 5 * MIB), set_aside=True)


@dataclasses.dataclass
class Owing:
    """A journal with one debt, and the hosts that are asked about it."""

    moving: Moving
    hosts: AnsweringHosts

    def owe(self, host: str, action: str, direction: Any, after: str, details: dict[str, Any]) -> None:
        """Record the debt."""
        owed = Owed(
            flow=FLOW, step=action, sequence=1, details=details, deadline=60.0, direction=direction, after=after
        )
        with self.moving.journal.write() as session:
            session.add(MoveFlow(uuid=FLOW, move_id=MOVE, kind="confirm", version=1, digest="d", created_at=NOW))
            session.add(Claim(move_id=MOVE, epoch=1, owner="conductor", claimed_at=NOW, released_at=NOW))
            told = msgspec.to_builtins(owed)
            debts.owe(session, move_id=MOVE, host=host, action=action, details=told, waits=True)

    def paid(self, shown: GuestState | None, *, other: str, find_home: FindHome | None = None) -> bool:
        """Let the other host show this (None: it is away), and the collector look once; tell whether it was paid."""
        if shown is None:
            self.hosts.stop(other)
        else:
            self.hosts.say(other, "describe_guest", msgspec.structs.replace(shown, definition=""))
        Collector(self.hosts, self.moving.journal, every=1.0, find_home=find_home).round()  # type: ignore[arg-type]
        with self.moving.journal.read() as session:
            return session.scalars(sa.select(Debt.settled_at)).one() is not None


@pytest.fixture(name="owing")
def fixture_owing(tmp_path: Path) -> Iterator[Owing]:
    made = Owing(Moving(tmp_path), AnsweringHosts())
    hosts = made.hosts
    incarnation.begin(hosts, made.moving.journal)  # type: ignore[arg-type]
    for host in (SOURCE, DESTINATION):
        known = [f"{action}@{ACTION_VERSION}" for action in ("discard_source", "copy_disks", "describe_guest")]
        record = commands.Registration(host=host, version="1", hypervisor="toy", actions=known, address="unix:/none")
        hosts.stop(host)
        hosts.create(worker_path(host), codec.encode(record))
        hosts.say(host, "check_set_aside", VALID["check_set_aside"])
        hosts.say(host, "discard_source", VALID["discard_source"])
        hosts.say(host, "copy_disks", {})
    yield made
    made.moving.close()
    hosts.close()


@pytest.mark.parametrize(
    ("shown", "paid"), [(WHOLE, True), (BOTH, True), (ASIDE, False)], ids=["apart", "shared", "shared-without-its-own"]
)
def test_a_source_discards_no_copy_for_one_that_it_set_aside_itself(
    owing: Owing, shown: GuestState, *, paid: bool
) -> None:
    """In a directory that both share, the destination finds what the source set aside, beside the server's disks."""
    owing.owe(SOURCE, "discard_source", "execute", DESTINATION, {"undefine": True, "keep": False})
    assert owing.paid(shown, other=DESTINATION) is paid
    assert ("discard_source" in [each.action for each in owing.hosts.asked]) is paid


@pytest.mark.parametrize("shown", [WHOLE, ASIDE], ids=["in use", "set aside"])
def test_a_destination_deletes_its_copy_once_the_source_shows_the_disks_in_use_or_set_aside(
    owing: Owing, shown: GuestState
) -> None:
    owing.owe(DESTINATION, "copy_disks", "revert", SOURCE, {})
    assert owing.paid(shown, other=SOURCE)


@pytest.mark.parametrize("shown", [guest(), None], ids=["without its disks", "away"])
@pytest.mark.parametrize(
    ("deleted", "paid"), [(1, True), (0, False), (None, False)], ids=["deleted", "alive", "without a row"]
)
def test_the_copy_of_a_server_whose_rows_show_its_delete_waits_for_no_other_host(
    owing: Owing, shown: GuestState | None, *, deleted: int | None, paid: bool
) -> None:
    """No host will ever show the disks of a deleted server.  A missing row may be that of a database put back."""
    with owing.moving.cell.write() as session:
        session.execute(sa.update(Instance).values(deleted=deleted or 0))
        for table in reversed(CellBase.metadata.sorted_tables) if deleted is None else ():
            session.execute(table.delete())
    owing.owe(DESTINATION, "copy_disks", "revert", SOURCE, {})
    # The move is within one cell, so the API database is not asked.
    find_home = returning.homes(owing.moving.journal, owing.moving.cells)
    assert owing.paid(shown, other=SOURCE, find_home=find_home) is paid
    assert ("copy_disks" in [each.action for each in owing.hosts.asked]) is paid
