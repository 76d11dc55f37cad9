"""Renames a copy of the disks that may not be deleted yet, since the host of the other copy is dead."""

from __future__ import annotations

from typing import Final

from droveway.errors import StepError
from droveway.flows.run import DECLARED_DOWN, UNREACHABLE, Context
from droveway.flows.steps.hosts.command import same_directory
from droveway.persistence.journal.debts import RENAME
from droveway.wire import commands
from droveway.wire.values import ACTION_VERSION

_KNOWN: Final = f"{RENAME}@{ACTION_VERSION}"


def rename(ctx: Context, host: str) -> None:
    """Have the host give the copy a name under which nobody takes it for the server's own disks.

    If the host is away, it owes the rename.  In two cases the copy keeps the server's name:

    * The worker is of an older release, which cannot rename a copy.
    * Both hosts share one directory.  The disks from which the copy was made are then in that directory too, so they
      are not out of reach with the dead host.

    Raises StepError where the host refuses.
    """
    worker = ctx.run.workers().get(host)
    if same_directory(ctx) or (worker is not None and _KNOWN not in worker.actions):
        return
    if worker is None:
        _owe(ctx, host)
        return
    try:
        ctx.command(host, RENAME, commands.NoDetails(), direction="execute", part="rename")
    except StepError as error:
        if error.error_code not in (UNREACHABLE, DECLARED_DOWN):
            raise
        _owe(ctx, host)


def _owe(ctx: Context, host: str) -> None:
    ctx.owe(host, RENAME, commands.NoDetails(), direction="execute")
