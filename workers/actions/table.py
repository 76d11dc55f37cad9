"""Every action that a worker can do, with its undo, and how it is run."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from droveway.errors import CoordinationLost, DestinationFault, DrovewayError, Fenced, Parked, StepError
from droveway.printable import printable
from droveway.wire import commands
from droveway.workers.actions import checks, connections, copies, disks, guests, keeping, removal
from droveway.workers.context import Context

LOG = logging.getLogger(__name__)

Body = Callable[[Context, Any], dict[str, Any]]


def nothing(_: Context, __: Any) -> dict[str, Any]:
    """The undo of an action that only reads, or that has no way back."""
    return {}


class Action(NamedTuple):
    """Both directions of an action; each may be repeated and may find the other half done."""

    execute: Body
    revert: Body


ACTIONS: Final[dict[str, Action]] = {
    "describe_guest": Action(checks.describe_guest, nothing),
    "check_destination": Action(checks.check_destination, checks.undo_check_destination),
    "find_storage": Action(checks.find_storage, nothing),
    "stop_guest": Action(guests.stop_guest, guests.undo_stop_guest),
    "disconnect": Action(connections.disconnect, connections.connect),
    "connect": Action(connections.connect, connections.disconnect),
    "set_aside": Action(disks.set_aside, disks.undo_set_aside),
    "offer_disks": Action(copies.offer_disks, copies.undo_offer_disks),
    "copy_disks": Action(copies.copy_disks, copies.undo_copy_disks),
    "fit_disks": Action(copies.fit_disks, nothing),
    "define_guest": Action(guests.define_guest, guests.undo_define_guest),
    "prepare_start": Action(guests.prepare_start, nothing),
    "start_guest": Action(guests.start_guest, guests.undo_start_guest),
    "check_copy": Action(checks.check_copy, nothing),
    "check_set_aside": Action(checks.check_set_aside, nothing),
    "check_guest": Action(checks.check_guest, nothing),
    "check_health": Action(checks.check_guest, nothing),
    "discard_source": Action(disks.discard_source, nothing),
    "keep_copy": Action(keeping.keep_copy, nothing),
    "purge_kept": Action(disks.purge_kept, disks.undo_purge_kept),
    "restore_disks": Action(disks.restore_disks, disks.undo_restore_disks),
    "prepare_source_guest": Action(guests.prepare_source_guest, guests.undo_prepare_source_guest),
    "discard_destination": Action(disks.discard_destination, nothing),
    "rename_copy": Action(disks.rename_copy, nothing),
    "remove_guest": Action(removal.remove_guest, nothing),
}

DESTINATION_ACTIONS: Final = {"check_destination", "copy_disks", "fit_disks", "define_guest"}
"""A full disk in one of these is the destination's fault: the next alternate may be tried."""


def run(ctx: Context, details: Any) -> dict[str, Any]:
    """Carry the command out.

    Raises StepError (or DestinationFault) for what the conductor is told; Fenced, CoordinationLost and Parked leave
    the command begun, without a result.
    """
    command = ctx.command
    action = ACTIONS[command.action]
    body = action.execute if command.direction == "execute" else action.revert
    try:
        value = body(ctx, details)
    except (Fenced, CoordinationLost, Parked):
        raise
    except StepError as error:
        raise _told(ctx, _located(ctx, error)) from None
    except DrovewayError as error:
        raise _told(ctx, ctx.failed(str(error), code=error.code)) from None
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _told(ctx, _disk_full(ctx)) from None
        raise _told(ctx, ctx.failed(f"{command.action} failed on {ctx.host.name}: {error}", code="io")) from None
    except Exception as error:
        LOG.exception("%s failed inside", _what(ctx))
        text = f"{command.action} met {type(error).__name__} on {ctx.host.name}: {error}"
        raise ctx.failed(text, code="internal") from None
    if command.action not in commands.QUESTIONS:
        LOG.info("%s is done", _what(ctx))
    return value


def _told(ctx: Context, error: StepError) -> StepError:
    """The error, once it is logged."""
    LOG.info("%s failed: %s: %s", _what(ctx), error.error_code, printable(error.message))
    return error


def _what(ctx: Context) -> str:
    command = ctx.command
    undo = "" if command.direction == "execute" else "the undo of "
    flow = command.key.partition(".")[0]
    return f"Move {command.move} (req-{flow}): {undo}{command.action} of server {ctx.server} in step {command.step}"


DISK_FULL: Final = "disk-full"


def _disk_full(ctx: Context) -> StepError:
    text = f"the disk of {ctx.host.name} is full in {ctx.command.action} of server {ctx.server}: make room"
    if ctx.command.action in DESTINATION_ACTIONS and ctx.command.direction == "execute":
        return ctx.fault(text, code=DISK_FULL)
    return ctx.failed(text, code=DISK_FULL)


def _located(ctx: Context, error: StepError) -> StepError:
    """The error with the host where it happened, and as no fault of a destination when an undo met it."""
    if error.host and (ctx.command.direction == "execute" or not isinstance(error, DestinationFault)):
        return error
    kind = type(error) if ctx.command.direction == "execute" else StepError
    return kind(error.message, code=error.error_code, host=error.host or ctx.host.name)


assert ACTIONS.keys() == commands.ACTIONS.keys()  # noqa: S101 - a worker that lacks an action must not start
