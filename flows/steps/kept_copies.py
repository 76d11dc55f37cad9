"""What becomes of a copy that nobody may delete, as the host of the other one is dead: it is kept, renamed and owed."""

from __future__ import annotations

from typing import Final

from droveway import wire
from droveway.errors import StepError
from droveway.flows.run import DECLARED_DOWN, UNREACHABLE
from droveway.flows.step import Context
from droveway.flows.steps.command import same_directory

ACTION: Final = "rename_copy"

_KNOWN: Final = f"{ACTION}@{wire.ACTION_VERSION}"


def rename(ctx: Context, host: str) -> None:
    """Have the host give the copy a name under which nobody takes it for the server's own disks.

    A host that is away, or whose worker is of an older release, keeps it under the server's name.  In one directory the
    disks that the copy was made of lie beside it.  Raises StepError for what the host refuses.
    """
    worker = ctx.run.workers().get(host)
    if same_directory(ctx) or worker is None or _KNOWN not in worker.actions:
        return
    try:
        ctx.run.command(
            ctx.step,
            ctx.direction,
            host=host,
            action=ACTION,
            details=wire.NoDetails(),
            deadline=60.0,
            command_direction="execute",
            part="rename",
        )
    except StepError as error:
        if error.error_code not in (UNREACHABLE, DECLARED_DOWN):
            raise
