"""A journal put back or lost in the middle of an operation, and the move ended by what it names; and the judge."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.labs.operations import Stage, stage
from support.two_faults import command, copies, recording, restores, world
from support.two_faults.world import Watch

CLOUD = """
cells: {cell1: {hosts: {host1: {}, host2: {}}}}
flavors: {small: {vcpus: 1, memory_mb: 256, root_gb: 1}}
images: {base: {size_mb: 1}}
servers:
  web: {flavor: small, host: host1, image: base, ports: [{}], volumes: [{size_gb: 1}]}
  near: {flavor: small, host: host1, image: base, ports: [{}]}
"""
GROUPS = (
    *("apart:resize:", "apart:resize-undone:", "shared:resize-undone:"),
    *("shared:revert:", "apart:confirm:", "apart:revert:"),
    *("cells:cross_cell_resize:", "cells:cross_cell_confirm:", "cells:cross_cell_revert:"),
    "elsewhere:cross_cell_revert_elsewhere:",
)
"""The operations of the sample: each has to be recorded first."""
EACH = 1
"""So many points of each operation where the journal was put back, and where a worker's was moved away."""
SEED = 7
MET = [
    # The journal has the disks set aside, and the source has them in use again.
    "apart:resize-undone:revert.set_aside.late:execute.define_guest:retried:host2:revert",
    # What was recorded before the move is no longer so, since the move itself has changed it.
    "apart:resize-undone:execute.connect_destination.before:execute.record_before:retried:host2:revert",
    # The rows say that the move was undone.
    "apart:resize-undone:revert.record_migration.after:revert.stop_guest:left:host1:confirm",
    "apart:resize-undone:end:revert.copy_disks:retried:up:confirm",
    # The undo reads what a step found that the rows showed as done.
    "apart:resize:execute.switch_records.after:execute.connect_destination:retried:host1:confirm",
    # The storage probe is gone by then, and was written anew.
    "apart:resize:execute.start_guest.after:execute.accept:left:up:revert",
    "shared:resize-undone:execute.connect_destination.early:execute.check_destination:retried:host1:revert",
    # The revert had come past its start, or is not known at all.
    "shared:revert:execute.start_guest.after:execute.reserve_ports:retried:up:revert",
    "shared:revert:execute.return_allocation.after:execute.mark_reverting:left:host2:confirm",
    "shared:revert:execute.restore_disks.early:rest:retried:host2:confirm",
    # The flow failed before it came to what was to be undone, and was told as undone.
    "apart:resize:execute.copy_disks.after:begin:retried:host1:confirm",
    # What the server was before is not known, nor the destination.
    "apart:resize:execute.start_guest.after:begin:retried:up:revert",
    # The rows show the start, and the source is away.
    "apart:resize:execute.save_request_spec.after:execute.accept:retried:host1:confirm",
    # All was undone, and the flow parked rather than fail.
    "apart:resize-undone:revert.record_before.before:execute.accept:left:host1:confirm",
    "shared:resize-undone:revert.record_before.before:begin:retried:host2:revert",
    # The volumes were reserved again before the undo, and so on the host that it takes them from.
    "apart:revert:execute.restore_disks.late:execute.move_ports:retried:host2:confirm",
    "apart:revert:execute.restore_disks.late:worker-host2:retried:host2:confirm",
    # The journal has the move in the middle of its forward flow, and it was confirmed or reverted, or is being so.
    "apart:confirm:end:forward.copy_disks:retried:up:confirm",
    "apart:confirm:execute.keep_copy.after:forward.set_aside:left:host1:revert",
    "apart:revert:execute.stop_guest.after:forward.accept:retried:host2:confirm",
    "shared:revert:end:forward.move_ports:retried:up:revert",
    # The destination is away, and the rows in its cell were removed by the undo.
    "cells:cross_cell_resize:execute.upload_disks.late:execute.choose_destinations:retried:host2:confirm",
    # The revert was over, or had come past the point where it shows the source's rows, or removes the target's.
    "cells:cross_cell_revert:execute.settle_records.after:forward.copy_records:retried:host1:confirm",
    "cells:cross_cell_revert:execute.show_source.after:forward.reserve_ports:left:host1:revert",
    "cells:cross_cell_revert:execute.remove_target_records.after:execute.start_guest:retried:up:revert",
    # The confirm had removed the source's rows.
    "cells:cross_cell_confirm:execute.remove_source_records.after:execute.check_source_records:retried:host1:confirm",
    # What was uploaded is not known any more, and the images tell it.
    "elsewhere:cross_cell_revert_elsewhere:execute.prepare_source_guest.early:forward.show_target:retried:host3:revert",
    # The copy's mark has ended.
    "apart:confirm:execute.release_source_allocation.before:execute.mark_confirming:retried:up:revert",
]
"""Points that did not hold once."""


@pytest.mark.timeout(900)
@pytest.mark.parametrize("group", GROUPS)
def test_a_restored_or_lost_journal_starts_no_second_guest_and_its_move_ends(
    tmp_path: Path, record_property: Callable[[str, object], None], group: str
) -> None:
    chosen = [each for each in MET if each.startswith(group)]
    for every in (restores.put_back(), restores.moved_away()):
        chosen += command.sample([each for each in every if each.startswith(group)], EACH, SEED)
    verdicts = list(restores.run(tmp_path, chosen))
    bad = [f"{each.point}: {each.trouble}" for each in verdicts if each.trouble]
    record_property("two faults", (restores.KIND, len(verdicts), len(verdicts) - len(bad)))
    assert len(verdicts) == len(chosen)
    assert bad == []


def test_every_operation_has_points() -> None:
    every = restores.points()
    assert len(every) == len(set(every))
    journals = [*restores.put_back(), *restores.moved_away()]
    operations = [f"{kind}{end}" for kind in ("resize", "migrate", "confirm", "revert") for end in ("", "-undone")]
    assert {tuple(each.split(":")[:2]) for each in journals} == {
        *((storage, operation) for storage in ("apart", "shared") for operation in operations),
        *(("cells", f"cross_cell_{operation}") for operation in operations),
        *((storage, operation) for storage in recording.SHELVES for operation in recording.SHELVING),
        *((storage, operation) for storage in recording.SHELVES_BETWEEN for operation in recording.UNSHELVE_BETWEEN),
        *(("elsewhere", operation) for operation in recording.REVERT_ELSEWHERE),
    }


def test_each_worker_s_journal_is_moved_away_in_each_way() -> None:
    every = {(point.of, point.how) for point in map(restores.Point.parse, restores.moved_away())}
    wanted = {(f"{restores.LOST}{host}", how) for host in recording.HOSTS for how in restores.HOWS}
    assert wanted <= every


@pytest.fixture(name="lab")
def fixture_lab(tmp_path: Path) -> Iterator[Stage]:
    with stage(tmp_path / "lab", CLOUD) as made:
        copies.stamp(made.root, [made.id_of("web"), made.id_of("near")])
        yield made


def change(database: Path, statement: str) -> None:
    with world.opened(database) as connection, connection:
        connection.execute(statement)


def second_guest(lab: Stage) -> None:
    server = lab.id_of("web")
    shutil.copytree(lab.directory("host1", "web"), lab.directory("host2", "web"))
    guest = lab.lab.hypervisor("host1").guest(server)
    assert guest is not None
    lab.lab.hypervisor("host2").define(
        server, guest.definition, vcpus=None, memory_mb=None, disks=[Path("disk")], volumes=[], ports=[], mark=None
    )
    lab.lab.hypervisor("host2").start(server, lambda: None)


def second_guest_that_ended(lab: Stage) -> None:
    second_guest(lab)
    lab.lab.hypervisor("host2").stop(lab.id_of("web"), grace=0.0, fence=lambda: None)


def overwrite(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def cut(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(world.BLOCK * 16)


def cell(lab: Stage) -> Path:
    return lab.lab.layout.cell("cell1")


def volume(lab: Stage) -> Path:
    return next(lab.lab.layout.volumes.iterdir())


BROKEN: dict[str, tuple[Callable[[Stage], object], str]] = {
    "two guests": (second_guest, "was started on host2 while it ran on host1"),
    "two guests, one of which ended": (second_guest_that_ended, "was started on host2 while it ran on host1"),
    "a lost disk": (lambda lab: (lab.directory("host1", "web") / "disk").unlink(), "no whole copy of disk of web"),
    "a cut disk": (lambda lab: cut(lab.directory("host1", "web") / "disk"), "no whole copy of disk of web"),
    "other bytes": (
        lambda lab: overwrite(lab.directory("host1", "web") / "disk", world.BLOCK * 16, b"x"),
        "no whole copy of disk of web",
    ),
    "a neighbour's disk": (lambda lab: cut(lab.directory("host1", "near") / "disk"), "no whole copy of disk of near"),
    "a neighbour's row": (
        lambda lab: change(cell(lab), "UPDATE instances SET locked = 1 WHERE display_name = 'near'"),
        "of the neighbour near cell1.instances changed",
    ),
    "a volume's bytes": (lambda lab: overwrite(volume(lab), world.BLOCK * 3, b"x"), "has other bytes"),
    "a task": (
        lambda lab: change(cell(lab), "UPDATE instances SET task_state = 'deleting' WHERE display_name = 'web'"),
        "with the task deleting",
    ),
    "another host": (
        lambda lab: change(cell(lab), "UPDATE instances SET host = 'host2', node = 'host2' WHERE display_name = 'web'"),
        "and its guest runs on ['host1']",
    ),
    "an allocation": (
        lambda lab: change(
            lab.lab.layout.placement,
            f"UPDATE allocations SET used = used + 1 WHERE consumer_id = '{lab.id_of('web')}'",
        ),
        "has 1 vCPUs and 256 MiB and holds",
    ),
    "a binding": (
        lambda lab: change(lab.lab.layout.services, "UPDATE port_bindings SET status = 'INACTIVE'"),
        "of the neighbour near services.port_bindings changed",
    ),
    "an attachment": (lambda lab: change(lab.lab.layout.services, "DELETE FROM attachments"), "the attachments are []"),
    "a directory": (lambda lab: lab.directory("host2", "web").mkdir(), "on host2 is left: instances/"),
    "a directory aside": (lambda lab: lab.directory("host1", "web", "_resize").mkdir(), "_resize is left on host1"),
    **{
        f"use that is counted twice, as {column}": (
            lambda lab, column=column: change(  # type: ignore[misc]
                cell(lab), f"UPDATE compute_nodes SET {column} = {column} + 1 WHERE host = 'host1'"
            ),
            f"host1 counts {wrong} as {column} and its servers make it {wrong - 1}",
        )
        for column, wrong in {
            "vcpus_used": 3,
            "memory_mb_used": 513,
            "local_gb_used": 3,
            "free_ram_mb": 8192 - 511,
            "free_disk_gb": 99,
            "running_vms": 3,
        }.items()
    },
    "another column of a host": (
        lambda lab: change(cell(lab), "UPDATE compute_nodes SET pci_stats = '{}' WHERE host = 'host1'"),
        "of the hosts changed what no move writes",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_world_that_was_broken_by_hand_is_rejected(lab: Stage, name: str) -> None:
    watch, server = Watch(lab.root), lab.id_of("web")
    assert watch.trouble(server, ended=True) == ""
    broken, told = BROKEN[name]
    broken(lab)
    assert told in watch.trouble(server, ended=True)
