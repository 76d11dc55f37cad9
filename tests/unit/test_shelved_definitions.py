"""Which definition a shelved server gets back: that of the shelve that was its last, if this tool shelved it."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from support.rows.moving_rows import CELL, NOW, SERVER, SOURCE, Moving, guest, record

from droveway.flows.before import ImageBefore, as_json
from droveway.flows.steps import images
from droveway.flows.steps.records.unshelving import RecordBefore
from droveway.persistence.journal.tables import Move, MoveFlow
from droveway.persistence.nova.cell import InstanceAction

FIRST, SECOND = (str(uuid.UUID(int=number)) for number in (1, 2))
SHELVES: Final = [FIRST, SECOND]


class Shelved(Moving):
    """A server that was shelved more than once."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "unshelve")

    def shelve(self, move: str, day: int, *, state: str = "done") -> None:
        """Let this tool shelve the server, with a definition that is called after the move."""
        at, flow = NOW + dt.timedelta(days=day), str(uuid.uuid5(uuid.UUID(move), "flow"))
        known = as_json(record(guest=guest(definition=move)))
        facts = {"server": SERVER, "server_name": "web", "policy": "manual", "created_at": at, "updated_at": at}
        places = {"old_flavor": "small", "new_flavor": "small", "source_cell": CELL, "source_host": SOURCE}
        with self.journal.write() as session:
            session.add(Move(id=move, kind="shelve", state=state, before=known, **facts, **places))
            session.add(MoveFlow(uuid=flow, move_id=move, kind="shelve", version=1, digest="d", created_at=at))
        self.act("shelve", f"req-{flow}")

    def act(self, action: str, request: str) -> None:
        """Let Nova's list have this action."""
        with self.cell.write() as session:
            session.add(InstanceAction(instance_uuid=SERVER, action=action, request_id=request, deleted=0))

    def definition(self, image: str = "") -> str:
        """Return the definition that the server gets."""
        found = ImageBefore(image=image, size=1, checksum="", algorithm="", format="raw") if image else None
        return RecordBefore(self).guest(self.context("record_before"), found).definition


@pytest.fixture(name="moving")
def fixture_moving(tmp_path: Path) -> Iterator[Shelved]:
    made = Shelved(tmp_path)
    yield made
    made.close()


def test_a_server_on_a_volume_gets_the_definition_of_its_last_shelve(moving: Shelved) -> None:
    moving.shelve(FIRST, 1)
    moving.act("unshelve", "req-user")
    moving.shelve(SECOND, 2)
    assert moving.definition() == SECOND
    moving.act("reboot", "req-other")
    assert moving.definition() == SECOND


def test_a_server_on_a_volume_that_nova_shelved_since_gets_no_definition_of_before(moving: Shelved) -> None:
    """Its user may have changed its flavor in between, or what its image asks of the guest."""
    moving.shelve(FIRST, 1)
    moving.act("unshelve", "req-user")
    moving.act("shelve", "req-user-again")
    assert moving.definition() == ""


def test_a_shelve_that_was_undone_is_not_the_last(moving: Shelved) -> None:
    moving.shelve(FIRST, 1)
    moving.act("unshelve", "req-user")
    moving.shelve(SECOND, 2, state="failed")
    moving.act("shelve", "req-user-again")
    assert moving.definition() == ""


@pytest.mark.parametrize("move", SHELVES)
def test_of_a_server_with_an_image_the_image_tells_which_shelve_it_was(moving: Shelved, move: str) -> None:
    moving.shelve(FIRST, 1)
    moving.shelve(SECOND, 2)
    assert moving.definition(images.image_of(move)) == move


def test_an_image_that_nova_made_has_no_definition(moving: Shelved) -> None:
    moving.shelve(FIRST, 1)
    assert moving.definition(SECOND) == ""
