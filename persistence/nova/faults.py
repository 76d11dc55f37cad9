"""Records why an operation on a server failed, as users of Nova see it: rows of `instance_faults`."""

from __future__ import annotations

import dataclasses
from typing import Final

import sqlalchemy as sa
from sqlalchemy import orm

from droveway.persistence.nova.cell import InstanceFault

CODE: Final = 500
"""The code that Nova gives each failure that is not the user's own fault."""

_LONGEST: Final = 255


@dataclasses.dataclass(frozen=True)
class Fault:
    """Holds one failure; ``details`` has to differ from the ``details`` of the server's other failures."""

    message: str
    details: str
    host: str
    step: str = ""
    """The step of the flow that failed."""


def record(session: orm.Session, server: str, fault: Fault) -> None:
    """Add the fault as Nova's `add_instance_fault_from_exc` does, unless the server has one with the same details.

    The column in which Nova keeps a traceback gets ``details``, which only administrators are shown.  A user is shown
    the message.
    """
    known = sa.select(InstanceFault.id).where(
        InstanceFault.instance_uuid == server, InstanceFault.details == fault.details
    )
    if session.scalar(known.limit(1)) is None:
        session.add(
            InstanceFault(
                instance_uuid=server,
                code=CODE,
                message=fault.message[:_LONGEST],
                details=fault.details,
                host=fault.host,
                deleted=0,
            )
        )
