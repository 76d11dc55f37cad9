"""Holds every action that a worker can do, by name; the functions of this package register themselves.

A function has the name of its action, which ``wire/commands.py`` declares.  The function that undoes it has the same
name with ``undo_`` before it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

from droveway.wire import commands
from droveway.workers.context import Context

Body = Callable[[Context, Any], dict[str, Any]]
"""Carries out one direction of an action, and returns its value: the facts that the worker answers to the conductor."""

_Body = TypeVar("_Body", bound=Body)

_UNDO: Final = "undo_"


def nothing(_: Context, __: Any) -> dict[str, Any]:
    """Do nothing, as the undo of an action that only reads or that cannot be taken back."""
    return {}


class Action(NamedTuple):
    """Both directions of an action.

    Each direction may run more than once.  It may also begin when the other direction has done half of its work.
    """

    execute: Body
    revert: Body = nothing
    of_destination: bool = False
    """Whether the action runs on a destination: when it cannot begin there, the next alternate may be tried."""
    fills_disk: bool = False
    """Whether a disk that gets full in the action counts as the destination's fault too."""
    thrifty: bool = False
    """Whether the action needs no room but a few bytes, so that it may use the reserve; every undo may."""


ACTIONS: Final[dict[str, Action]] = {}
"""Every action; importing `droveway.workers.actions.dispatch` fills it."""


def action(
    *, of_destination: bool = False, fills_disk: bool = False, thrifty: bool = False
) -> Callable[[_Body], _Body]:
    """Register the function as the action of its name."""

    def enter(body: _Body) -> _Body:
        name = body.__name__
        if name not in commands.ACTIONS:
            raise LookupError(f"no action is called {name}: declare it in ACTIONS of wire/commands.py")
        ACTIONS[name] = Action(body, of_destination=of_destination, fills_disk=fills_disk, thrifty=thrifty)
        return body

    return enter


def undo(body: _Body) -> _Body:
    """Register the function as the undo of the action that its name says."""
    name = body.__name__.removeprefix(_UNDO)
    if name not in ACTIONS or not body.__name__.startswith(_UNDO):
        raise LookupError(f"{body.__name__} undoes no action: call it {_UNDO}ACTION, and write it behind that one")
    ACTIONS[name] = ACTIONS[name]._replace(revert=body)
    return body
