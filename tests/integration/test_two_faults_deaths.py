"""Each host of a move dies for good at any point of it, is declared down, and is back later; and the judge of that."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.labs.operations import Stage, stage
from support.two_faults import copies, death_flows, death_rests, death_worlds, deaths
from support.two_faults.command import sample
from support.two_faults.death_worlds import DESTINATION, HOSTS, SOURCE, Death

from droveway.flows import registry
from droveway.flows.steps.hosts import kept_copies
from droveway.persistence.journal.tables import Move

COUNT = 18
BOTH = 3
OF_CELLS = ("cross_cell_resize", "cross_cell_migrate-undone", "cross_cell_confirm-undone", "cross_cell_revert-undone")
"""The operations between cells of which one point each is tried; a database is put back in the others."""
SEED = 16
STUCK = [
    "apart:confirm:execute.check_destination_copy.before:destination+source:on:confirm",
    "apart:revert:execute.check_source.during:destination+source:off:confirm",
    "bare:rest:paused.resize.start_guest:destination+source:off:revert",
    "bare:revert:execute.start_guest.stored:source+destination:on:revert",
    "shared:confirm-undone:revert.mark_confirming.after:source+destination:on:confirm",
    "shared:revert:execute.release_destination.after:destination+source:off:revert",
]
"""Moves that once ended by no command."""
ELSEWHERE = "elsewhere:cross_cell_revert_elsewhere:"
"""The operation of which one point is tried. The sample of databases has unshelves instead."""
SHELVED = [
    # The undo deleted the image while the host of the disks was dead.
    "shelf:shelve-undone:revert.free_volumes.stored:source:off:confirm",
    # The image was whole, and the shelve was undone.
    "shelf:shelve:execute.upload_disks.after:source:off:revert",
]
"""Shelves that did not hold once."""


@pytest.mark.timeout(900)
@pytest.mark.parametrize("storage", deaths.STORAGES)
def test_every_move_ends_without_a_host_that_is_dead(
    tmp_path: Path, record_property: Callable[[str, object], None], storage: str
) -> None:
    """At most one guest runs, a whole copy of each disk stands, and the host that is back pays what it owes."""
    both = {point for point in STUCK if point.startswith(storage)}
    both |= {*of_storage(deaths.points_of_both(), storage, BOTH)}
    chosen = [*of_storage(deaths.points_of_one(), storage, COUNT), *sorted(both)]
    verdicts = list(deaths.run(tmp_path, chosen))
    bad = [f"{each.point}: {each.trouble}" for each in verdicts if each.trouble]
    record_property("two faults", (deaths.KIND, len(verdicts), len(verdicts) - len(bad)))
    assert len(verdicts) == len(chosen)
    assert bad == []


@pytest.mark.timeout(900)
def test_every_move_between_cells_ends_without_a_host_that_is_dead(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    chosen = sample([point for point in deaths.points_of_both() if point.startswith("cells:")], 1, SEED)
    for operation in OF_CELLS:
        every = [point for point in deaths.points_of_one() if point.startswith(f"cells:{operation}:")]
        chosen += sample(every, 1, SEED)
    verdicts = list(deaths.run(tmp_path, chosen))
    bad = [f"{each.point}: {each.trouble}" for each in verdicts if each.trouble]
    record_property("two faults", (deaths.KIND, len(verdicts), len(verdicts) - len(bad)))
    assert len(verdicts) == len(chosen)
    assert bad == []


@pytest.mark.timeout(900)
def test_every_shelve_and_revert_elsewhere_ends_without_a_host_that_is_dead(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    chosen = [*SHELVED, *sample([point for point in deaths.points_of_one() if point.startswith(ELSEWHERE)], 1, SEED)]
    verdicts = list(deaths.run(tmp_path, chosen))
    bad = [f"{each.point}: {each.trouble}" for each in verdicts if each.trouble]
    record_property("two faults", (deaths.KIND, len(verdicts), len(verdicts) - len(bad)))
    assert len(verdicts) == len(chosen)
    assert bad == []


def of_storage(points: list[str], storage: str, count: int) -> list[str]:
    """Its share of a sample."""
    return sample([point for point in points if point.startswith(storage)], count // len(deaths.STORAGES), SEED)


def test_every_step_of_every_flow_has_points() -> None:
    every = [deaths.Point.parse(text) for text in deaths.points()]
    assert len(every) == len(set(every)) >= 500
    assert set(STUCK) <= {*deaths.points_of_both()}
    met = {
        (death_flows.OPERATIONS[each.operation], each.at.split(".")[1]) for each in every if each.operation != "rest"
    }
    assert set(SHELVED) <= {*deaths.points_of_one()}
    for kind in registry.kinds():
        assert {step.step_name() for step in registry.latest(kind).walk()} <= {step for of, step in met if of == kind}
    assert {(each.dead, each.back) for each in every} == {
        (dead, back)
        for dead in (*HOSTS, death_worlds.RETURN, *death_worlds.BOTH, *death_worlds.BOTH_ELSEWHERE)
        for back in death_worlds.BACK
    }


def test_a_move_is_parked_for_every_code_that_a_step_may_meet() -> None:
    parked = {at.rpartition(".")[2] for _operation, at in death_rests.rests() if at.startswith("parked.")}
    assert (
        parked == set(death_rests.park_codes()) >= {"host-unreachable", "start-unknown", "last-copy", "runs-elsewhere"}
    )


@pytest.fixture(name="lab")
def fixture_lab(tmp_path: Path) -> Iterator[Stage]:
    """A lab in which the server waits on host2, and nothing is wrong yet."""
    with stage(tmp_path / "lab", deaths.cloud("bare")) as made:
        with made.lab.layout.configuration.open("a") as options:
            options.write(deaths.OPTIONS)
        copies.stamp(made.root, [made.id_of("web")])
        made.cli("server", "migrate", "web", "--host", "host2", "--confirm", "manual")
        yield made


def dead(lab: Stage, role: str) -> Death:
    death = Death(lab, lab.id_of("web"), role)
    death.die()
    return death


def judged(lab: Stage, death: Death, back: str = death_worlds.OFF) -> str:
    return death_worlds.judge(lab, death, choice="confirm", back=back)


@pytest.mark.parametrize("role", [*HOSTS, *death_worlds.BOTH])
def test_the_judge_takes_a_death_that_is_paid_for(lab: Stage, role: str) -> None:
    assert judged(lab, dead(lab, role), death_worlds.ON) == ""


def test_the_judge_rejects_a_copy_that_is_gone(lab: Stage) -> None:
    """The other host's disks alone are the server's: what the dead one has nobody can show."""
    death = dead(lab, DESTINATION)
    shutil.rmtree(lab.directory("host1", "web", "_resize"))
    assert "host1" in judged(lab, death)


def test_the_judge_rejects_a_whole_copy_that_only_the_dead_host_has(
    lab: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    death = dead(lab, SOURCE)
    monkeypatch.setattr(death_worlds.ways_out, "finish", lambda *_args, **_words: empty(lab))
    assert "none has any more" in " ".join(death_worlds.wrong(lab, death, "confirm", death_worlds.OFF))


@pytest.mark.parametrize(
    "point",
    [
        "apart:resize-undone:revert.copy_disks.before:source:off:confirm",
        "apart:revert:execute.start_guest.during:source:on:revert",
    ],
)
def test_the_judge_rejects_a_kept_copy_under_the_servers_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """The source of an undone move, or of a revert behind its start, is dead: nobody can say what the copy is worth."""
    assert point in deaths.points()
    (held,) = deaths.run(tmp_path / "renamed", [point])
    monkeypatch.setattr(kept_copies, "rename", lambda *_: None)
    (told,) = deaths.run(tmp_path / "not-renamed", [point])
    assert held.trouble == ""
    assert "and on host2 is left: instances/" in told.trouble


@pytest.mark.parametrize("left", [False, True])
def test_the_judge_asks_for_no_guest_of_a_move_that_a_person_left(
    lab: Stage, monkeypatch: pytest.MonkeyPatch, *, left: bool
) -> None:
    """That of any other move has to start where its host is back."""
    death = dead(lab, DESTINATION)
    monkeypatch.setattr(death_worlds.ways_out, "finish", lambda *_args, **_words: undefined(lab, left=left))
    told = [each for each in death_worlds.wrong(lab, death, "confirm", death_worlds.OFF) if "does not start" in each]
    assert len(told) == (0 if left else 1)


def undefined(lab: Stage, *, left: bool) -> str:
    lab.lab.hypervisor("host2").undefine(lab.id_of("web"))
    with lab.lab.journal.write() as session:
        session.get_one(Move, lab.move("web").id).error_code = "left-as-is" if left else None
    return ""


def empty(lab: Stage) -> str:
    for path in lab.directory("host2", "web").glob("disk*"):
        path.write_bytes(b"")
    return ""
