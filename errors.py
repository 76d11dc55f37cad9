"""Defines every error that Droveway raises on purpose.

Each class carries a stable ``code``, which scripts rely on and `move history` shows, and an ``exit_code``, with which
the CLI ends.

An *alternate* is a further host that a move tries when its destination was at fault. An *epoch* is the number of a
conductor's claim on a move: a claim with a newer epoch makes every older claim worthless.
"""

from __future__ import annotations

from typing import Any, ClassVar


class DrovewayError(Exception):
    """Something went wrong inside Droveway; the message is one sentence for an operator."""

    code: ClassVar[str] = "internal"
    exit_code: ClassVar[int] = 1


class Refused(DrovewayError):
    """The request breaks a rule; nothing was changed.  The message names the thing, the rule and the mend."""

    code = "refused"
    exit_code = 2


class NotFound(Refused):
    """The named server, host, cell, flavor or move does not exist."""

    code = "not-found"


class Conflict(Refused):
    """Somebody else changed the row first: a compare-and-swap found other values than it expected."""

    code = "conflict"


class IllegalTransition(DrovewayError):
    """The table of legal transitions does not have this change of state."""

    code = "illegal-transition"


class BadObject(DrovewayError):
    """A column of Nova's does not hold the object that Nova keeps there; the message says to restore the row."""

    code = "bad-object"


class Fenced(DrovewayError):
    """Another conductor has claimed the move, with a newer epoch, so this conductor may write nothing more."""

    code = "fenced"


class Parked(DrovewayError):
    """The step ended without a result on purpose; the conductor stops its flow where it is and releases the job."""

    code = "parked"


class CoordinationLost(DrovewayError):
    """ZooKeeper did not answer, or the session with it has ended; whether the last call took effect is unknown."""

    code = "coordination-lost"


class StepError(DrovewayError):
    """A step failed and is to be undone.  Flat and JSON-safe: it is stored in flow details and in the history.

    ``code`` names the class of failure. ``host`` names the host on which the step failed; it is empty when the step
    failed on the conductor.
    """

    code = "step-failed"
    exit_code = 3

    def __init__(self, message: str, *, code: str | None = None, host: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.error_code = code or type(self).code
        self.host = host

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild_step_error, (type(self), self.message, self.error_code, self.host))

    def as_dict(self) -> dict[str, str]:
        """Return the error as it is stored: code, message, host, and whether an alternate may be tried."""
        return {"code": self.error_code, "message": self.message, "host": self.host, "fault": fault_of(self)}


class DestinationFault(StepError):
    """A step failed through the destination's fault: the next alternate may be tried."""

    code = "destination-fault"


class AttachmentLost(StepError):
    """Cinder does not have a volume's attachment, or has it without a connection to a host.

    Cinder's database may have been restored from a backup.
    """

    code = "attachment-gone"


class Cancelled(StepError):
    """The move was cancelled, or its server deleted: the flow is undone and no alternate is tried."""

    code = "cancelled"


class ServerDeleted(Cancelled):
    """The server was deleted during the move.

    The flow releases what the move holds, such as allocations and volumes, and does not give it back to the server.
    """

    code = "deleted"


class Evacuated(Cancelled):
    """Nova evacuated the server during the move.

    What Nova wrote stays. The flow removes only what the move itself has left.
    """

    code = "evacuated"


def fault_of(error: StepError) -> str:
    """Return ``destination`` when an alternate may be tried, else ``move``."""
    return "destination" if isinstance(error, DestinationFault) else "move"


def step_error(stored: dict[str, str]) -> StepError:
    """Return the error that `StepError.as_dict` described."""
    kind = DestinationFault if stored.get("fault") == "destination" else StepError
    return kind(stored["message"], code=stored["code"], host=stored.get("host", ""))


def _rebuild_step_error(kind: type[StepError], message: str, code: str, host: str) -> StepError:
    return kind(message, code=code, host=host)
