"""The images that a move kept go once a host has shown the server's disks: until then they may be its last copy."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
import sqlalchemy as sa
from support.rows.moving_rows import DESTINATION, FLOW, MOVE, NOW, SOURCE, Moving

from droveway.audit.read import journal
from droveway.flows.steps import moved_images
from droveway.persistence.journal import debts
from droveway.persistence.journal.moves import BY_NOVA, LEFT
from droveway.persistence.journal.tables import Debt, MoveStep

STEP: Final = moved_images.DeleteKeptImages.step_name()


class Images:
    """A move that keeps the image of its one disk, and what is deleted of it."""

    def __init__(self, moving: Moving) -> None:
        self.moving, self.deleted = moving, list[str]()
        moving.row.keep_image = True
        run: Any = moving
        run.intent = lambda *_call: contextlib.nullcontext()
        run.cloud = SimpleNamespace(images=SimpleNamespace(delete=self.deleted.append))
        self.kept = moved_images.kept(moving.row)
        assert self.kept

    def end(self) -> dict[str, Any]:
        """Come to the step that deletes the images; its result."""
        return moved_images.DeleteKeptImages(self.moving).perform(self.moving.context(STEP))  # type: ignore[arg-type]

    def owe(self, *, after: str) -> None:
        """Let the destination owe the deletion of its copy."""
        with self.moving.journal.write() as session:
            details = {debts.AFTER: after, "flow": FLOW}
            debts.owe(
                session,
                move_id=MOVE,
                host=DESTINATION,
                action="discard_destination",
                details=details,
                waits=bool(after),
            )


@pytest.fixture(name="images")
def fixture_images(tmp_path: Path) -> Iterator[Images]:
    moving = Moving(tmp_path, kind="cross_cell_revert")
    yield Images(moving)
    moving.close()


@pytest.mark.parametrize("after", [None, ""], ids=["nothing owed", "nothing to show"])
def test_images_go_once_nothing_waits_for_a_proof(images: Images, after: str | None) -> None:
    if after is not None:
        images.owe(after=after)
    assert images.end() == {"images": images.kept}
    assert images.deleted == images.kept


def test_images_stay_while_a_copy_waits_for_the_proof_of_another(images: Images) -> None:
    images.owe(after=SOURCE)
    kept = images.end()
    assert kept == {"kept": images.kept, "why": "host host1 has not shown yet that its copy of the server is whole"}
    assert images.deleted == []
    with images.moving.journal.read() as session:
        assert [debt.after for debt in journal.debts(session)] == [SOURCE]
    with images.moving.journal.write() as session:
        session.execute(sa.update(Debt).values(settled_at=NOW))
    images.end()
    assert images.deleted == images.kept


def test_images_of_a_deleted_server_wait_for_no_proof(images: Images) -> None:
    images.owe(after=SOURCE)
    images.moving.change(deleted=1)
    images.end()
    assert images.deleted == images.kept


def test_images_stay_where_nova_ended_the_move_and_a_copy_could_not_be_shown(images: Images) -> None:
    images.moving.note("discard_destination")
    with images.moving.journal.write() as session:
        session.execute(sa.update(MoveStep).values(ended_at=NOW, result={**BY_NOVA, LEFT: "the copy was left"}))
    assert images.end() == {"kept": images.kept, "why": "this flow could not clear up: the copy was left"}
    assert images.deleted == []
