"""Writes into the move's row how far a host is with a long step, while the conductor waits for its answer."""

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
"""Seconds between two reports of progress that are written to the journal."""

FIRST_AFTER: Final = 0.4
"""Seconds after which a command counts as long: most are answered sooner."""

_NOW: Final = sa.func.utc_now()

NOTHING_REPORTED: Final = dict.fromkeys(
    ("progress_done", "progress_total", "progress_kept", "progress_seconds", "progress_at")
)
"""The columns of a move whose running step has reported nothing yet."""


class ProgressNote:
    """Writes the progress of one command: it reads at most every `NOTE_EVERY` seconds, and writes only what changed."""

    def __init__(
        self,
        move_id: str,
        read: Callable[[], Progress | None],
        write: Callable[[], AbstractContextManager[orm.Session]],
    ) -> None:
        """``read`` reads the host's last report; ``write`` opens a journal transaction that holds the claim."""
        self._move = move_id
        self._read = read
        self._write = write
        self._kept: Progress | None = None
        self._next = time.monotonic() + FIRST_AFTER

    def update(self) -> None:
        """Write what the host has reported since; raises `droveway.errors.Fenced` when the claim is lost."""
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
                        # If the amount is the one in the row, progress_at stays as it is.  The amount may have been
                        # reported under an earlier claim, and would then be no progress under this one.
                        # This column comes first: in MariaDB a later one would compare with the new amount.
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
            # The next report replaces this one.
            LOG.debug("The progress of move %s could not be written: %s", self._move, error)
            return
        self._kept = reported
