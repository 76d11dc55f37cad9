"""Logs what becomes of a move: a line for each step that ends, each wait, each debt and each rest."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Final

from droveway.flows.alternates import Alternates
from droveway.flows.run import OWED
from droveway.persistence.journal.moves import PASSED_ON
from droveway.persistence.journal.states import ADVICE, State
from droveway.printable import SHORT, printable

if TYPE_CHECKING:
    from droveway.persistence.journal.tables import Move

LOG: Final = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class _Begun:
    at: float
    """By the monotonic clock."""
    attempt: int
    host: str | None


class Steps:
    """Logs how the steps of one claimed flow begin and end, except failures, which `droveway.flows.step` logs."""

    def __init__(self, move_id: str, without_undo: Collection[str] = ()) -> None:
        """``without_undo`` names the steps that have no undo: their undo does nothing, and is logged at debug level."""
        self._move = move_id[:SHORT]
        self._without_undo = without_undo
        self._taken_up = time.monotonic()
        self._begun: dict[tuple[str, str], _Begun] = {}

    def begin(self, step: str, direction: str, *, attempt: int, host: str | None) -> None:
        """Tell that a run of the step begins, on this host (None for the conductor)."""
        self._begun[step, direction] = _Begun(time.monotonic(), attempt, host)
        LOG.debug("Move %s: %s begins%s", self._move, _named(step, direction), _where(attempt, host))

    def end(self, step: str, direction: str, result: Mapping[str, Any] | None) -> None:
        """Tell that the step is done, or owed; for the choice of an alternate, tell which host is tried now."""
        # For an undo that an earlier claim began, the time counts from when this claim took the move up.
        begun = self._begun.pop((step, direction), _Begun(self._taken_up, 0, None))
        if step == Alternates.title:
            if direction == "execute" and result:
                self._tell_alternate(result)
            return
        if result and OWED.keys() <= result.keys():
            LOG.info(
                "Move %s: %s is not done, but owed%s",
                self._move,
                _named(step, direction),
                _where(begun.attempt, begun.host),
            )
            return
        nothing_done = direction == "revert" and (step in self._without_undo or result == PASSED_ON)
        LOG.log(
            logging.DEBUG if nothing_done else logging.INFO,
            "Move %s: %s is done after %.2f s%s",
            self._move,
            _named(step, direction),
            time.monotonic() - begun.at,
            _where(begun.attempt, begun.host),
        )

    def _tell_alternate(self, chosen: Mapping[str, Any]) -> None:
        number = chosen["attempt"]
        LOG.info(
            "Move %s: %s is host %s of cell %s (attempt %d)",
            self._move,
            "its destination" if number == 1 else "the next alternate",
            chosen["host"],
            chosen["cell"],
            number,
        )


def _named(step: str, direction: str) -> str:
    return f"step {step}" if direction == "execute" else f"the undo of step {step}"


def _where(attempt: int, host: str | None) -> str:
    on = f" on host {host}" if host else ""
    return f"{on} (attempt {attempt})" if attempt else on


def tell_taken_up(move: Move, kind: str, epoch: int) -> None:
    """Tell that this conductor has claimed the move and runs its flow."""
    LOG.info(
        "Move %s: %s of server %s (%s) from host %s runs here under epoch %d",
        move.id[:SHORT],
        kind,
        move.server,
        printable(move.server_name),
        move.source_host,
        epoch,
    )


def tell_given_back(move: Move, kind: str, *, ended: bool) -> None:
    """Tell what state the move is in after this conductor gave its claim on it back."""
    short, why = move.id[:SHORT], f": {move.error_code}: {printable(move.error)}" if move.error else ""
    if move.state == State.NEEDS_OPERATOR:
        tell_parked(move)
    elif ended:
        undone = move.state == State.FAILED or (move.state == State.VERIFYING and move.error is not None)
        level = logging.WARNING if undone else logging.INFO
        LOG.log(level, "Move %s: %s has ended, and the move's state is %s%s", short, kind, move.state, why)
    else:
        LOG.info("Move %s: %s is given back at step %s, to go on from there%s", short, kind, move.step, why)


def tell_parked(move: Move) -> None:
    """Tell that the move needs an operator, why, and what to type."""
    short = move.id[:SHORT]
    LOG.error(
        "Move %s needs an operator%s: %s: %s; %s (droveway explain %s)",
        short,
        f" at step {move.step}" if move.step else "",
        move.error_code,
        printable(move.error or ""),
        ADVICE[State.NEEDS_OPERATOR].format(move=short),
        move.error_code,
    )


def tell_wait(move_id: str, what: str) -> None:
    """Tell what the move waits for, usually something that an operator can bring back."""
    LOG.warning("Move %s waits for %s", move_id[:SHORT], what)


def tell_debt(move_id: str, debtor: str, action: str, step: str, direction: str) -> None:
    """Tell what a host or a cell owes from now on."""
    LOG.warning(
        "Move %s: %s owes %s, and pays it once it is back", move_id[:SHORT], debtor, _owed(action, step, direction)
    )


def tell_paid(move_id: str, debtor: str, action: str, step: str, direction: str) -> None:
    """Tell which debt of a host or a cell was paid."""
    LOG.info("Move %s: %s has paid what it owed: %s", move_id[:SHORT], debtor, _owed(action, step, direction))


def tell_void(move_id: str, debtor: str, step: str) -> None:
    """Tell that a host no longer owes a step that it never carried out, since the step is undone."""
    LOG.info(
        "Move %s: %s no longer owes step %s: it never carried that out, and the step is undone",
        move_id[:SHORT],
        debtor,
        step,
    )


def _owed(action: str, step: str, direction: str) -> str:
    return f"the undo of step {step}" if direction == "revert" else f"{action} of step {step}"


def tell_kept(move_id: str, host: str, seconds: int) -> None:
    """Tell that the host keeps the source's disks after the confirm."""
    LOG.info("Move %s: host %s keeps the source's disks for %d s, and purges them then", move_id[:SHORT], host, seconds)
