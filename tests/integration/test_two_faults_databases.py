"""A database of Nova, Placement, Neutron or Cinder put back in mid-operation: a fixed sample; and the judge."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.labs.operations import stage
from support.two_faults import command, copies, databases, recording, restores, ways_out, world
from support.two_faults.recording import API, BETWEEN_CELLS, CELL, DATABASES, PLACEMENT, TARGET_CELL, Point

GROUPS = ("volume:resize:", "apart:resize-undone:", "shared:revert:", "apart:confirm:", "apart:revert-undone:")
"""The operations of the sample: each has to be recorded first."""
EACH = {CELL: 1, PLACEMENT: 1}
"""So many points of each operation with the cell's database put back, and with Placement's."""
BETWEEN = {
    "cells:cross_cell_confirm:": {PLACEMENT: 1},
    "cells:cross_cell_migrate:": {},
    "cells:cross_cell_resize-undone:": {},
    "cells:cross_cell_revert:": {},
}
"""The same between cells, where each database is met in the points below; the other operations have a host die."""
MORE: dict[str, dict[str, int]] = {
    "shelf:shelve:": {},
    "shelf:unshelve:": {},
    "shelf-cells:cross_cell_unshelve-undone:": {},
    "shelf:unshelve-undone:": {PLACEMENT: 1},
    "shelf-cells:cross_cell_unshelve:": {TARGET_CELL: 1, API: 1},
}
"""The same of unshelves. The sample of dead hosts has shelves and reverts to another host instead."""
SEED = 11
MET = [
    # What the move had claimed was claimed by nobody, and its confirm gave up what the source held.
    "volume:resize:execute.start_guest.before:placement-begin:resumed:up:confirm",
    # The server's rows pass for those of a server that waits, and its volume has another attachment by now.
    "apart:revert-undone:revert.mark_reverting.before:cell-begin:resumed:up:revert",
    "apart:revert-undone:revert.mark_reverting.before:cell-execute.mark_reverting:resumed:up:revert",
    # The audit named no command for a copy of a move between cells that was over, nor for what such a move has left in
    # the API database.
    "cells:cross_cell_confirm:end:target-cell-execute.check_source:resumed:host1:confirm",
    "cells:cross_cell_resize-undone:revert.copy_records.after:target-cell-execute.show_target:resumed:host1:confirm",
    "cells:cross_cell_revert:end:api-begin:cancelled:up:revert",
    "cells:cross_cell_revert:end:cell-execute.prepare_source_guest:cancelled:up:confirm",
    # The rows named an attachment of the middle of an unshelve that was undone.
    "shelf:unshelve-undone:revert.claim.before:cell-execute.copy_disks:cancelled:up:confirm",
    # The audit went by the rows of a server whose shelve or unshelve was over, and told to give its allocation back.
    "shelf:shelve:end:cell-rest:cancelled:up:confirm",
    "shelf:shelve:end:cell-execute.upload_disks:resumed:host1:revert",
    "shelf:unshelve:end:cell-rest:resumed:host1:confirm",
    "shelf:unshelve:end:cell-execute.copy_disks:cancelled:host2:revert",
    # It named no command for a copy that an unshelve in another cell had removed.
    "shelf-cells:cross_cell_unshelve:end:cell-rest:resumed:host1:confirm",
    "shelf-cells:cross_cell_unshelve-undone:end:target-cell-execute.fit_disks:resumed:host2:confirm",
    # Cinder had the source's attachment again: the rows that named it passed for those of an older cell.
    "apart:resize-undone:execute.move_ports.before:cinder-execute.record_before:cancelled:host2:revert",
    # No command made the attachment anew that the undo needed.
    "apart:resize-undone:revert.release_source.before:cinder-execute.mark_migrating:resumed:host1:confirm",
    "shelf:shelve-undone:revert.release_source.late:cinder-revert.unbind_ports:cancelled:host1:confirm",
    # The undo of a shelve asked for a second export of a volume.
    "shelf:shelve:execute.record_shelved.after:cinder-execute.release_source:cancelled:up:confirm",
    # The audit took Cinder's copy for one of the cell.
    "shelf:shelve:execute.settle_records.after:cinder-execute.record_before:resumed:host2:confirm",
    "shelf:unshelve-undone:revert.claim.before:cinder-execute.attach_volumes:cancelled:host2:revert",
    # Neutron binds no port by its host alone where the port has an inactive binding there.
    "apart:revert-undone:execute.switch_records.before:neutron-execute.move_volumes:cancelled:host1:confirm",
    # A move that waited named its source's cell, in which nothing was wrong.
    "cells:cross_cell_migrate:end:api-execute.accept:cancelled:host1:revert",
]
"""Points that did not hold once."""


@pytest.mark.timeout(900)
@pytest.mark.parametrize("group", [*GROUPS, *BETWEEN, *MORE])
def test_a_database_that_was_put_back_starts_no_second_guest_and_its_move_ends(
    tmp_path: Path, record_property: Callable[[str, object], None], group: str
) -> None:
    chosen = [each for each in MET if each.startswith(group)]
    every = [each for each in databases.points() if each.startswith(group)]
    for database, count in (BETWEEN | MORE).get(group, EACH).items():
        chosen += command.sample([each for each in every if Point.parse(each).database == database], count, SEED)
    verdicts = list(restores.run(tmp_path, chosen))
    bad = [f"{each.point}: {each.trouble}" for each in verdicts if each.trouble]
    record_property("two faults", (restores.KIND, len(verdicts), len(verdicts) - len(bad)))
    assert len(verdicts) == len(chosen)
    assert bad == []


def test_every_database_is_put_back_in_each_way() -> None:
    every = list(map(Point.parse, databases.points()))
    crossing = {*BETWEEN_CELLS, *recording.UNSHELVE_BETWEEN, *recording.REVERT_ELSEWHERE}
    between = [point for point in every if point.operation in crossing]
    shelving = [point for point in every if point.operation in recording.SHELVING]
    within = [point for point in every if point.operation in recording.OPERATIONS]
    assert len(between) + len(shelving) + len(within) == len(every)
    for points, wanted in ((within, databases.WITHIN), (shelving, databases.SHELVED), (between, DATABASES)):
        found = {(point.database, point.how) for point in points if point.storage != recording.ELSEWHERE}
        assert found == {(database, how) for database in wanted for how in databases.HOWS}
    assert {(point.storage, point.operation) for point in within} == {
        (storage, operation) for storage in databases.STORAGES for operation in recording.OPERATIONS
    }
    assert {(point.storage, point.operation) for point in shelving} == {
        (storage, operation) for storage in recording.SHELVES for operation in recording.SHELVING
    }
    assert {point.operation for point in between} == crossing
    assert {point.database for point in between if point.storage == recording.ELSEWHERE} == {*DATABASES}


def test_a_full_run_meets_every_effect_and_every_boundary() -> None:
    chosen = list(map(Point.parse, restores.full()))
    every = list(map(Point.parse, restores.points()))
    assert len(set(chosen)) == len(chosen) >= restores.COVER
    assert restores.full() == list(map(str, chosen))
    assert {(each.operation, each.at) for each in chosen} == {(each.operation, each.at) for each in every}
    assert {(each.operation, each.of) for each in chosen} == {(each.operation, each.of) for each in every}


def test_a_cell_that_stays_as_it_was_put_back_is_rejected(tmp_path: Path) -> None:
    """The judge, of a world broken by hand: the rows say that the server never moved."""
    with stage(tmp_path / "lab", recording.cloud("apart")) as lab:
        copies.stamp(lab.root, [lab.id_of("web")])
        watch, server = world.Watch(lab.root), lab.id_of("web")
        files = lab.lab.layout
        kept = tmp_path / "cell.sqlite", tmp_path / "placement.sqlite"
        for path, copy in zip((files.cell("cell1"), files.placement), kept, strict=True):
            copies.copy_database(path, copy)
        lab.cli("server", "resize", "web", "--flavor", "large")
        lab.cli("server", "confirm", "web")
        assert watch.trouble(server, ended=True) == ""
        lab.lab.close()
        newest = tmp_path / "newest.sqlite"
        copies.copy_database(files.cell("cell1"), newest)
        copies.restore_database(kept[0], files.cell("cell1"))
        assert "its guest runs on ['host2']" in watch.trouble(server, ended=True)
        copies.restore_database(newest, files.cell("cell1"))
        assert watch.trouble(server, ended=True) == ""
        with world.opened(files.placement) as database, database:
            database.execute("DELETE FROM allocations WHERE consumer_id = ?", (server,))
        assert "web lives on host2 and holds {}" in watch.trouble(server, ended=True)


def test_the_way_out_of_a_cell_that_was_put_back_wants_a_persons_word() -> None:
    said = (
        "if the database of cell cell1 was put back from a copy, droveway move settle 1 --cell cell1 --reason TEXT "
        "writes what the move left there"
    )
    (way,) = ways_out.commands(said)
    assert (way.wants, way.is_told()) == (databases.TRUE[0], True)
