"""An unshelve in another cell whose database goes away, or whose cell is declared down."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from support.labs.cells_away import Databases, copies, moving, owed, shown, waits
from support.labs.cells_gone import WIDE, gone, settled
from support.labs.operations import Stage, stage
from support.labs.small_lab import until

from droveway.engines.operations import move_requests, shelving
from droveway.persistence.journal.tables import Move

HERE = "web: {flavor: small, host: host1, image: base, ports: [{}], volumes: [{size_gb: 1}]}"
SHELVED = (
    "web: {flavor: small, cell: cell1, image: base, ports: [{}], volumes: [{size_gb: 1}], state: shelved_offloaded}"
)


@pytest.fixture(scope="module", name="built")
def fixture_built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    assert HERE in WIDE
    text = WIDE.replace(HERE, SHELVED).replace("root_gb: 1", "root_gb: 0")
    with stage(tmp_path_factory.mktemp("unshelve") / "lab", text) as made:
        yield made


@pytest.fixture(name="lab")
def fixture_lab(built: Stage) -> Iterator[Stage]:
    """The lab with its server shelved in its cell."""
    yield built
    if built.server("web").cell != "cell1":
        built.cli("server", "shelve", "web")
        built.cli("server", "unshelve", "web", "--to-cell", "cell1")
        built.cli("server", "shelve", "web")
    assert copies(built) == {"cell1": 1, "cell2": 0, "cell3": 0}


def unshelve(lab: Stage) -> Callable[[], Move]:
    return lambda: shelving.unshelve(lab.lab, "web", to_cell="cell2")


def test_an_unshelve_that_is_cancelled_while_it_waits_for_its_target_cell_is_undone(lab: Stage) -> None:
    before = lab.standing("web")
    away = Databases(lab, "cell2", "show_target")
    with moving(lab, away, unshelve(lab)) as move:
        until(lambda: waits(lab, move, "cell2"), "the move waits")
        lab.cli("move", "cancel", move)
        assert move_requests.carry(lab.lab, move).state == "cancelled"
        due = [("cell2", action) for action in ("hide", "remove", "drop fence")]
        until(lambda: owed(lab) == due, "the cell owes it")
        away.bring()
    assert settled(lab)
    assert lab.standing("web") == before
    lab.assert_balanced()


def test_an_unshelve_whose_target_cell_is_gone_goes_back_before_its_start(lab: Stage) -> None:
    """Though its mapping was switched: the server is shelved by the rows of its own cell, and its image is there."""
    before = lab.standing("web")
    with gone(lab, "cell2", "carry_late_writes", unshelve(lab)) as move:
        assert move_requests.carry(lab.lab, move).state == "failed"
        assert "is declared down" in (shown(lab, move).error or "")
    assert settled(lab)
    assert lab.standing("web") == before
    lab.assert_balanced()


def test_what_an_unshelve_leaves_in_its_own_cell_is_owed_once_that_is_gone(lab: Stage) -> None:
    with gone(lab, "cell1", "remove_source_records", unshelve(lab)) as move:
        assert move_requests.carry(lab.lab, move).state == "done"
        assert ("cell1", "remove") in owed(lab)
    assert settled(lab)
    assert copies(lab) == {"cell1": 0, "cell2": 1, "cell3": 0}
    lab.assert_balanced()
