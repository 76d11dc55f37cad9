"""What a confirm does that finds its move confirmed by Nova, where the destination cannot show its copy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa
from support.rows.moving_rows import DESTINATION, MIB, NOW, SOURCE, Moving, disk, guest

from droveway.errors import StepError
from droveway.flows.run import DECLARED_DOWN, UNREACHABLE
from droveway.flows.steps.hosts.confirming import CheckDestinationCopy, DiscardSource
from droveway.flows.steps.records.confirm import SettleRecords
from droveway.persistence.journal.tables import MoveStep
from droveway.persistence.nova.cell import Instance


class Confirmed(Moving):
    """A move that Nova has confirmed; a host answers unless it is declared down or away."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "confirm")
        self.away: set[str] = set()
        self.owed: list[tuple[str, str, str]] = []
        self.says[SOURCE] = guest(set_aside=True)
        self.place(DESTINATION, None, "confirmed")

    def command(self, *words: Any, host: str, action: str, details: msgspec.Struct, **facts: Any) -> dict[str, Any]:
        """Answer for a host that is up; the destination shows its copy whole, and its guest runs."""
        if host in self.down | self.away:
            code = DECLARED_DOWN if host in self.down else UNREACHABLE
            raise StepError(f"host {host} is away", code=code, host=host)
        if action == "check_copy":
            return {"running": True, "starts": 1, "disks": []}
        return super().command(*words, host=host, action=action, details=details, **facts)

    def owe(self, _step: str, *, host: str, action: str, after: str, **_others: Any) -> None:
        """Write the debt down, and the host that it waits for."""
        self.owed.append((host, action, after))

    def check(self) -> dict[str, Any]:
        """Run the check of the destination's copy, and store its result."""
        found = CheckDestinationCopy(self).perform_ended(self.context("check_destination_copy"))
        self.store(found)
        return found

    def store(self, result: dict[str, Any]) -> None:
        """Let the history have this result of the check."""
        facts = {"move_id": self.row.id, "flow_uuid": self.flow_uuid, "flow": self.kind, "epoch": self.epoch}
        run = MoveStep(
            **facts, step="check_destination_copy", direction="execute", attempt=1, started_at=NOW, result=result
        )
        with self.journal.write() as session:
            session.add(run)

    def discard(self) -> dict[str, Any]:
        """Run the step that deletes what is still set aside."""
        return DiscardSource(self).perform_ended(self.context("discard_source"))

    def settle(self, told: dict[str, Any]) -> None:
        """Finish the rows by what the check came to."""
        ctx = self.context("settle_records")
        ctx.inputs["destination_guest"] = told
        SettleRecords(self).perform_ended(ctx)

    def power(self) -> tuple[str | None, int | None]:
        """Read vm_state and power_state of the server."""
        with self.cell.read() as session:
            row = session.scalars(sa.select(Instance)).one()
            return row.vm_state, row.power_state


@pytest.fixture(name="moving")
def fixture_moving(tmp_path: Path) -> Iterator[Confirmed]:
    made = Confirmed(tmp_path)
    yield made
    made.close()


def test_a_source_that_is_away_discards_its_copy_after_the_destination_has_shown_its_own(moving: Confirmed) -> None:
    moving.away = {SOURCE}
    assert moving.check()["proved"]
    moving.discard()
    assert (moving.commands, moving.owed) == ([], [(SOURCE, "discard_source", "")])


@pytest.mark.parametrize("returned", [False, True], ids=["both-down", "source-back"])
def test_a_dead_destination_proves_nothing(moving: Confirmed, *, returned: bool) -> None:
    """The source's copy may be the only one: it goes once the destination is back and has shown its own."""
    moving.down = {SOURCE, DESTINATION}
    assert not moving.check()["proved"]
    if returned:
        moving.down = {DESTINATION}
    moving.discard()
    assert (moving.commands, moving.owed) == ([], [(SOURCE, "discard_source", DESTINATION)])


def test_what_an_earlier_release_took_for_a_proof_is_none(moving: Confirmed) -> None:
    moving.down = {SOURCE, DESTINATION}
    moving.store({"running": False, "declared_down": DESTINATION, "proved": True})
    moving.discard()
    assert moving.owed == [(SOURCE, "discard_source", DESTINATION)]


def test_of_a_host_that_was_both_ends_a_dead_one_owes_nothing(moving: Confirmed) -> None:
    """What it set aside itself would be shown as the copy that is to stay."""
    assert moving.chosen is not None
    moving.chosen.host, moving.row.storage, moving.down = SOURCE, "same-host", {SOURCE}
    moving.place(SOURCE, None, "confirmed")
    moving.check()
    assert "left" in moving.discard()
    assert moving.owed == []


def test_a_server_that_is_to_be_deleted_needs_no_proof(moving: Confirmed) -> None:
    moving.row.delete_requested, moving.down = True, {DESTINATION}
    moving.check()
    moving.discard()
    assert (moving.commands, moving.owed) == ([(SOURCE, "discard_source", "execute")], [])


def test_what_is_still_set_aside_goes_once_the_destination_has_shown_its_copy(moving: Confirmed) -> None:
    moving.says[DESTINATION] = guest(disk("disk", 5 * MIB))
    moving.check()
    moving.discard()
    assert (moving.commands, moving.owed) == ([(SOURCE, "discard_source", "execute")], [])


@pytest.mark.parametrize(("was", "becomes"), [(1, ("active", 1)), (4, ("stopped", 4))], ids=["running", "off"])
@pytest.mark.parametrize("silent", ["away", "down"])
def test_a_confirm_that_nova_left_half_written_ends_by_the_rows_where_no_host_tells(
    moving: Confirmed, silent: str, was: int, becomes: tuple[str, int]
) -> None:
    """The guest runs on: a nova-compute would stop it for a server that counts as stopped."""
    setattr(moving, silent, {SOURCE, DESTINATION})
    moving.place(DESTINATION, None, "confirmed", vm_state="resized")
    moving.change(power_state=was)
    moving.settle(moving.check())
    assert moving.power() == becomes


@pytest.mark.parametrize("was", [1, 4])
def test_a_confirm_that_nova_left_half_written_ends_by_what_the_host_says(moving: Confirmed, was: int) -> None:
    moving.place(DESTINATION, None, "confirmed", vm_state="resized")
    moving.change(power_state=was)
    moving.settle(moving.check())
    assert moving.power() == ("active", 1)
