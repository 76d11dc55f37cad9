"""What a revert goes on with, and what it keeps, where a host that a person declared down could not tell it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import msgspec
import pytest
import sqlalchemy as sa
from support.rows.moving_rows import (
    ATTACHMENT,
    CELL,
    DESTINATION,
    MIB,
    MOVE,
    SERVER,
    SOURCE,
    VOLUME,
    Moving,
    disk,
    guest,
    record,
)

from droveway.clients.volume import Attachment
from droveway.errors import StepError
from droveway.flows.before import as_json
from droveway.flows.run import DECLARED_DOWN, Context, MoveOptions
from droveway.flows.steps import reverting
from droveway.flows.steps.hosts import clearing, elsewhere
from droveway.persistence.journal.debts import RENAME
from droveway.persistence.journal.moves import LEFT
from droveway.persistence.journal.tables import MoveAttempt
from droveway.persistence.nova.cell import BlockDeviceMapping
from droveway.wire import commands
from droveway.wire.values import ACTION_VERSION

EMPTY: Final = "0b1e7c55-0000-4a63-8d4e-2a0f2a0c9b16"
"""The attachment that was reserved for the source."""
RECORDED: Final = {"host": SOURCE, "initiator": "iqn.recorded"}
OTHER: Final = "host3"
"""The host that takes a dead source's place."""
TOLD: Final = {"host": SOURCE, "initiator": "iqn.told"}


class Reverting(Moving):
    """Reverts; its hosts answer unless they are declared down, and its Cinder takes all that it is told."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "revert")
        self.options = MoveOptions()
        self.connected: list[tuple[str, Any]] = []
        """Each attachment that was exported, and by which connector."""
        old = Attachment(ATTACHMENT, VOLUME, SERVER, "attached", DESTINATION)
        self.cloud.volumes = SimpleNamespace(
            attachments=lambda _volume: [old],
            delete_attachment=lambda _attachment: None,
            connect=lambda attachment, connector, _device: self.connected.append((attachment, connector)),
            complete=lambda _attachment: None,
            shown=lambda attachment: {"id": attachment, "volume_id": VOLUME, "connection_info": {}},
        )
        self.owed: list[tuple[str, str, msgspec.Struct, str]] = []
        before = record(
            vm_state="stopped", guest=guest(disk("disk", MIB), definition="as before the move", connector=RECORDED)
        )
        with self.journal.write() as session:
            session.merge(self.row).before = self.row.before = as_json(before)
        self.place(DESTINATION, "resize_reverting", "reverting", vm_state="resized")
        self.says[DESTINATION] = guest(definition="as the revert found it")

    @staticmethod
    def is_behind() -> bool:
        """The revert may have stopped the guest already."""
        return True

    @staticmethod
    def intent(_service: str, _what: str) -> contextlib.AbstractContextManager[None]:
        """Nothing here loses an answer."""
        return contextlib.nullcontext()

    @staticmethod
    def void(_step: str, *, host: str) -> bool:
        """No host owed anything."""
        return False

    def owe(self, _step: str, *, host: str, action: str, details: msgspec.Struct, after: str, **_others: Any) -> None:
        """Write the debt down, and the host that it waits for."""
        self.owed.append((host, action, details, after))

    def workers(self) -> dict[str, Any]:
        """List the hosts whose workers are up, each of this release."""
        return {host: SimpleNamespace(actions=[f"{RENAME}@{ACTION_VERSION}"]) for host in super().workers()}

    def command(self, *facts: Any, host: str, action: str, details: msgspec.Struct, **others: Any) -> dict[str, Any]:
        """Answer unless the host is declared down; the source tells its connector beside what was set aside there."""
        if host in self.down:
            raise StepError(f"host {host} is declared down", code=DECLARED_DOWN, host=host)
        answer = super().command(*facts, host=host, action=action, details=details, **others)
        return {"connector": TOLD} if action == "check_set_aside" else answer

    def checked(self) -> dict[str, Any]:
        """What the revert's check gives to the steps behind it."""
        found = reverting.CheckSource(self).perform(self.context("check_source"))
        assert found is not None
        return found

    def step(self, name: str, direction: Any = "execute", **inputs: Any) -> Context:
        """The context of a step behind the check."""
        found = self.context(name, direction)
        found.inputs.update(inputs)
        return found


@pytest.fixture(name="moving")
def fixture_moving(tmp_path: Path) -> Iterator[Reverting]:
    made = Reverting(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize(("down", "connector"), [(set(), TOLD), ({SOURCE}, RECORDED)], ids=["up", "declared-down"])
def test_volumes_go_to_a_dead_source_by_the_connector_of_before_the_move(
    moving: Reverting, down: set[str], connector: dict[str, str]
) -> None:
    """What a source says that answers goes before it: a host may have got another one since."""
    moving.down = down
    checked = moving.checked()
    assert ("connector" in checked) is not bool(down)
    reserved = {VOLUME: {"old": ATTACHMENT, "new": EMPTY}}
    reverting.MoveVolumes(moving).perform(moving.step("move_volumes", reserved=reserved, source_check=checked))
    assert moving.connected == [(EMPTY, connector)]
    with moving.cell.read() as session:
        assert session.scalars(sa.select(BlockDeviceMapping.attachment_id)).one() == EMPTY


@pytest.mark.parametrize(
    ("down", "definition"),
    [(set(), "as the revert found it"), ({DESTINATION}, "as before the move")],
    ids=["up", "declared-down"],
)
def test_a_guest_that_its_dead_host_did_not_show_is_defined_as_before_the_move(
    moving: Reverting, down: set[str], definition: str
) -> None:
    """The undo meets the host again, on which it lies without what was detached meanwhile."""
    moving.down = down
    checked = moving.checked()
    moving.down = set()
    moving.commands.clear()
    moving.told.clear()
    with moving.cell.write() as session:
        session.execute(sa.update(BlockDeviceMapping).values(deleted=1))
    reverting.StopGuest(moving).undo(moving.step("stop_guest", "revert", source_check=checked))
    assert moving.commands == [
        (DESTINATION, "disconnect", "execute"),
        (DESTINATION, "define_guest", "execute"),
        (DESTINATION, "stop_guest", "revert"),
    ]
    defined = moving.told[1]
    assert isinstance(defined, commands.DefineGuest)
    assert (defined.definition, defined.volumes) == (definition, [])


UNDEFINED: Final = (DESTINATION, "define_guest", "revert")
RENAMED: Final = (DESTINATION, RENAME, "execute")


@pytest.mark.parametrize(
    ("storage", "done"), [("copy", [UNDEFINED, RENAMED]), ("shared", [UNDEFINED])], ids=["apart", "shared"]
)
def test_in_a_shared_directory_the_disks_keep_their_name_beside_a_dead_source(
    moving: Reverting, storage: str, done: list[Any]
) -> None:
    """There the destination shows the server's own: to rename them would take them from it, and only the guest goes."""
    moving.row.storage = storage
    moving.place(SOURCE, None, "reverted")
    moving.says[DESTINATION] = guest(disk("disk", MIB))
    moving.down = {SOURCE}
    told = clearing.discard_left_copy(moving.step("discard_destination"))
    assert moving.commands == done
    discard = commands.DiscardDestination(same_directory=storage == "shared")
    assert moving.owed == [(DESTINATION, "discard_destination", discard, SOURCE)]
    assert told["owes"] == DESTINATION


@pytest.mark.parametrize("storage", ["copy", "shared"])
def test_where_no_disks_were_left_nothing_is_owed(moving: Reverting, storage: str) -> None:
    moving.row.storage = storage
    moving.place(SOURCE, None, "reverted")
    moving.says[DESTINATION] = guest()
    moving.down = {SOURCE}
    clearing.discard_left_copy(moving.step("discard_destination"))
    assert (moving.commands, moving.owed) == ([UNDEFINED], [])


@pytest.mark.parametrize(
    "shown",
    [guest(), guest(disk("other", MIB)), guest(disk("disk", MIB - 1))],
    ids=["none", "another", "cut-short"],
)
def test_what_nova_left_of_its_revert_stays_while_the_source_does_not_show_the_disks_whole(
    moving: Reverting, shown: commands.GuestState
) -> None:
    moving.place(SOURCE, None, "reverted")
    moving.says |= {SOURCE: shown, DESTINATION: guest(disk("disk", MIB))}
    told = clearing.discard_left_copy(moving.step("discard_destination"))
    assert moving.commands == [UNDEFINED]
    assert "host1 could not show the server's disks" in told[LEFT]


def test_what_nova_left_of_its_revert_goes_once_the_source_has_shown_the_disks(moving: Reverting) -> None:
    moving.place(SOURCE, None, "reverted")
    moving.says |= {SOURCE: guest(disk("disk", MIB)), DESTINATION: guest(disk("disk", MIB))}
    assert LEFT not in clearing.discard_left_copy(moving.step("discard_destination"))
    assert moving.commands == [UNDEFINED, (DESTINATION, "copy_disks", "revert")]


def test_of_a_server_without_disks_the_source_need_show_none(moving: Reverting) -> None:
    moving.place(SOURCE, None, "reverted")
    moving.row.before = as_json(record(guest=guest(disk("disk.swap", MIB))))
    moving.says |= {SOURCE: guest(), DESTINATION: guest(disk("disk.swap", MIB))}
    assert LEFT not in clearing.discard_left_copy(moving.step("discard_destination"))
    assert moving.commands == [UNDEFINED, (DESTINATION, "copy_disks", "revert")]


class Elsewhere(Reverting):
    """Reverts to another host in a dead source's place."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.kind = "cross_cell_revert_elsewhere"
        self.says[OTHER] = guest(disk("disk", MIB))
        self.down = {SOURCE}

    def returning(self) -> MoveAttempt:
        """Name the host in the source's place."""
        assert self.chosen is not None
        return MoveAttempt(move_id=MOVE, attempt=1, cell=CELL, host=OTHER, node=OTHER, provider="p", request={})


@pytest.mark.parametrize(("dead", "after"), [(False, ""), (True, OTHER)], ids=["up", "declared-down"])
def test_a_dead_source_discards_its_disks_once_the_host_in_its_place_has_shown_its_own(
    tmp_path: Path, after: str, *, dead: bool
) -> None:
    """Where that host is dead too, what the source has set aside may be the only copy."""
    moving = Elsewhere(tmp_path)
    moving.down |= {OTHER} if dead else set()
    elsewhere.DiscardDestination(moving).perform(moving.step("discard_destination"))
    waits = {(host, action): other for host, action, _, other in moving.owed}
    assert waits[SOURCE, "discard_source"] == after
    assert ("discard_destination" in [action for _, action, _ in moving.commands]) is not dead
    moving.close()
