"""Runs the actions and turns each failure into the one error that a conductor reads."""

from __future__ import annotations

import errno
import logging
import time
from typing import Any, Final

from droveway.errors import CoordinationLost, DestinationFault, DrovewayError, Fenced, Parked, StepError
from droveway.printable import SHORT, printable
from droveway.wire import commands
from droveway.workers.actions import checks, connections, copies, disks, guests, images, keeping, removal
from droveway.workers.actions.table import ACTIONS
from droveway.workers.context import Context

LOG = logging.getLogger(__name__)

MODULES: Final = (checks, connections, copies, disks, guests, images, keeping, removal)
"""The modules that hold actions."""

DISK_FULL: Final = "disk-full"


def run(ctx: Context, details: Any) -> dict[str, Any]:
    """Carry the command out and return its value: the facts that the worker answers to the conductor.

    Raises StepError (or DestinationFault) for a failure that the conductor is told.  Fenced, CoordinationLost and
    Parked leave the command begun, without a result.
    """
    command = ctx.command
    action = ACTIONS[command.action]
    began = time.monotonic()
    body = action.execute if command.direction == "execute" else action.revert
    LOG.log(_level(command), "%s is taken up", named(command))
    try:
        value = body(ctx, details)
    except (Fenced, CoordinationLost, Parked):
        raise
    except StepError as error:
        raise _logged(ctx, _located(ctx, error)) from None
    except DrovewayError as error:
        raise _logged(ctx, ctx.failed(str(error), code=error.code)) from None
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _logged(ctx, _disk_full(ctx)) from None
        raise _logged(ctx, ctx.failed(f"{command.action} failed on {ctx.host.name}: {error}", code="io")) from None
    except Exception as error:
        LOG.exception("%s met an unexpected error", named(command))
        text = f"{command.action} met {type(error).__name__} on {ctx.host.name}: {error}"
        raise ctx.failed(text, code="internal") from None
    LOG.log(_level(command), "%s is done after %.2f s", named(command), time.monotonic() - began)
    return value


def _logged(ctx: Context, error: StepError) -> StepError:
    """Log the error and return it."""
    LOG.info("%s failed: %s: %s", named(ctx.command), error.error_code, printable(error.message))
    return error


def named(command: commands.Command) -> str:
    """Return the command's name for the log."""
    undo = "" if command.direction == "execute" else "the undo of "
    step = f" in step {command.step}" if command.step != command.action else ""
    return f"Move {command.move[:SHORT]}: {undo}{command.action}{step} on host {command.host}"


def _level(command: commands.Command) -> int:
    """Return the log level for the command: questions are asked again and again, so they are logged at DEBUG."""
    return logging.DEBUG if commands.ages(command.action) else logging.INFO


def _disk_full(ctx: Context) -> StepError:
    text = (
        f"the file system of {ctx.directories.instances} on {ctx.host.name} is full in {ctx.command.action} of server "
        f"{ctx.server}: make room there"
    )
    if ACTIONS[ctx.command.action].fills_disk and ctx.command.direction == "execute":
        return ctx.fault(text, code=DISK_FULL)
    return ctx.failed(text, code=DISK_FULL)


def _located(ctx: Context, error: StepError) -> StepError:
    """Return the error with the host where it happened; in an undo a DestinationFault becomes a plain StepError."""
    if error.host and (ctx.command.direction == "execute" or not isinstance(error, DestinationFault)):
        return error
    kind = type(error) if ctx.command.direction == "execute" else StepError
    return kind(error.message, code=error.error_code, host=error.host or ctx.host.name)


# A worker that lacks an action must not start.
if _lacking := sorted(commands.ACTIONS.keys() - ACTIONS.keys()):
    raise LookupError(
        f"nothing does {', '.join(_lacking)}: write a function of that name with @action in a module of MODULES"
    )
