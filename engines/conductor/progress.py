"""What a host tells of a long step, kept in the move's row while the conductor waits for its answer."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final

import sqlalchemy as sa
from sqlalchemy import orm

from droveway.persistence.database import WriteFailed
from droveway.persistence.journal.tables import Move
from droveway.wire.commands import Progress

LOG = logging.getLogger(__name__)

NOTE_EVERY: Final = 1.0
"""Seconds between two words that are kept."""

FIRST_AFTER: Final = 0.4
"""Seconds after which a command counts as long: most are answered sooner."""

_NOW: Final = sa.func.utc_now()

NOTHING_REPORTED: Final = dict.fromkeys(
    ("progress_done", "progress_total", "progress_kept", "progress_seconds", "progress_at")
)
"""The columns of a move whose running step has told nothing yet."""


class ProgressNote:
    """Keeps up with one command: nothing is read more often than `NOTE_EVERY`, nor written when nothing changed."""

    def __init__(
        self,
        move_id: str,
        read: Callable[[], Progress | None],
        write: Callable[[], AbstractContextManager[orm.Session]],
    ) -> None:
        """``write`` is a journal transaction that holds the claim."""
        self._move = move_id
        self._read = read
        self._write = write
        self._kept: Progress | None = None
        self._next = time.monotonic() + FIRST_AFTER

    def update(self) -> None:
        """Keep what was told since; raises `droveway.errors.Fenced` when the claim is lost."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + NOTE_EVERY
        reported = self._read()
        if reported is None or reported == self._kept:
            return
        try:
            with self._write() as session:
                session.execute(
                    sa.update(Move)
                    .where(Move.id == self._move)
                    .ordered_values(
                        # What an earlier claim has kept already is no progress of this one.  It comes first: MariaDB
                        # compares with what was assigned before it.
                        (
                            Move.progress_at,
                            sa.case((Move.progress_done == reported.done, Move.progress_at), else_=_NOW),
                        ),
                        (Move.progress_done, reported.done),
                        (Move.progress_total, reported.total),
                        (Move.progress_kept, reported.kept),
                        (Move.progress_seconds, reported.seconds),
                    )
                    .execution_options(synchronize_session=False)
                )
        except WriteFailed as error:
            LOG.debug("How far move %s is could not be kept: %s", self._move, error)  # the next word replaces it
            return
        self._kept = reported
