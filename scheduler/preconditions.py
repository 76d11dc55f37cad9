"""Checks what a move must meet before anything of it is written: Nova's API checks, in Nova's order.

Each check reads the facts that the caller gathered, and asks no service. Each refusal is one sentence that names the
thing, the rule and the mend. `docs/reference/preconditions.rst` is written from the tables here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from droveway.errors import Refused
from droveway.persistence.journal import kinds
from droveway.scheduler import flavor_rules as flavor
from droveway.scheduler import server_rules as server
from droveway.scheduler import shelve_rules as shelve
from droveway.scheduler.facts import (
    CROSS_CELL_MIGRATE,
    CROSS_CELL_RESIZE,
    CROSS_CELL_UNSHELVE,
    MIGRATE,
    RESIZE,
    SHELVE,
    UNSHELVE,
    EndFacts,
    Facts,
)

F = TypeVar("F", Facts, EndFacts)

CONFIRM: Final = kinds.Way.CONFIRM.value
REVERT: Final = kinds.Way.REVERT.value


@dataclasses.dataclass(frozen=True)
class Rule(Generic[F]):
    """One check, with the kinds of flow that it is asked of.

    ``numbers`` say which checks of Nova's API the rule repeats: Nova's checks are counted here in the order in which
    Nova makes them. There are none when Nova finds out later, or has no such rule.
    """

    numbers: tuple[int, ...]
    check: Callable[[F], str | None]
    kinds: tuple[str, ...]

    @property
    def says(self) -> str:
        """Return what the rule requires: the first line of its docstring, without "Require that"."""
        what = str(self.check.__doc__).partition("\n")[0].removeprefix("Require that ")
        return what[:1].upper() + what[1:]

    @property
    def name(self) -> str:
        """Return the rule's name."""
        return self.check.__name__


_RESIZE_OR_MIGRATE: Final = (RESIZE, MIGRATE, CROSS_CELL_RESIZE, CROSS_CELL_MIGRATE)
_MIGRATE: Final = (MIGRATE, CROSS_CELL_MIGRATE)
_RESIZE: Final = (RESIZE, CROSS_CELL_RESIZE)
_SHELVE: Final = (SHELVE,)
_UNSHELVE: Final = (UNSHELVE, CROSS_CELL_UNSHELVE)
_SHELVING: Final = (SHELVE, *_UNSHELVE)
_TO_ANOTHER_CELL: Final = (CROSS_CELL_RESIZE, CROSS_CELL_MIGRATE, CROSS_CELL_UNSHELVE)
_ON_A_HOST: Final = (*_RESIZE_OR_MIGRATE, SHELVE)
_ALL: Final = (*_RESIZE_OR_MIGRATE, *_SHELVING)

RULES: Final[tuple[Rule[Facts], ...]] = (
    Rule((), server.no_open_move, _ALL),
    Rule((2,), server.no_shares, _ALL),
    Rule((4,), server.no_accelerated_port, _ALL),
    Rule((5,), server.no_accelerator, _ALL),
    Rule((), server.only_normal_ports, _ALL),
    Rule((), server.binds_ports_twice, _RESIZE_OR_MIGRATE),
    Rule((), server.tells_what_ports_ask, _ALL),
    Rule((), server.no_bound_devices, _ALL),
    Rule((7,), server.in_a_movable_state, _RESIZE_OR_MIGRATE),
    Rule((), shelve.can_be_shelved, _SHELVE),
    Rule((), shelve.is_offloaded, _UNSHELVE),
    Rule((8,), server.without_a_task, _ALL),
    Rule((9,), server.was_launched, _ON_A_HOST),
    Rule((10,), server.is_on_a_host, _ON_A_HOST),
    Rule((), server.hosts_are_of_one_cell, _ALL),
    Rule((11,), server.source_is_up, _ON_A_HOST),
    Rule((12,), server.target_is_another_host, _MIGRATE),
    Rule((13,), server.target_is_in_its_cell, (*_RESIZE_OR_MIGRATE, *_UNSHELVE)),
    Rule((), server.target_cell_takes_servers, _TO_ANOTHER_CELL),
    Rule((), server.target_cell_answers, _TO_ANOTHER_CELL),
    Rule((), server.target_takes_servers, (*_MIGRATE, *_UNSHELVE)),
    Rule((), server.crosses_whole, _TO_ANOTHER_CELL),
    Rule((), server.target_cell_has_no_copy, _TO_ANOTHER_CELL),
    Rule((15,), flavor.may_be_used, _RESIZE),
    Rule((16,), flavor.asks_for_no_accelerator, _RESIZE),
    Rule((17,), flavor.keeps_a_root_disk, _RESIZE),
    Rule((18,), flavor.is_enabled, _RESIZE),
    Rule((19,), flavor.is_another_one, _RESIZE),
    Rule((), flavor.shrinks_no_disk, _RESIZE),
    Rule((20,), flavor.keeps_the_quotas, _RESIZE),
    Rule((21, 22), flavor.has_the_images_memory, _RESIZE),
    Rule((21,), flavor.has_the_images_disk, _RESIZE),
    Rule((21,), flavor.agrees_with_the_image, _RESIZE),
    Rule((21, 22, 23, 24), flavor.binds_no_devices, _RESIZE),
    Rule((), shelve.gives_up_its_ephemeral_disk, _SHELVE),
    Rule((), shelve.has_no_config_drive, _SHELVING),
    Rule((), shelve.image_can_be_kept, _SHELVING),
    Rule((), shelve.its_image_is_whole, _UNSHELVE),
    Rule((), server.holds_its_allocation, _ON_A_HOST),
    Rule((), shelve.holds_nothing, _UNSHELVE),
)
"""The rules in the order in which they are asked, which is Nova's."""

NOT_HERE: Final = {
    1: (
        "The server exists, in the cell that it is mapped to.",
        "Looked up before any rule is: an unknown name is refused with the command that lists the servers.",
    ),
    3: (
        "Every nova-compute is new enough for ports that ask for several groups of resources.",
        "No nova-compute takes part in a move: the conductor claims what ports ask for, and binds them.",
    ),
    6: (
        "The server is not locked, unless an administrator asks.",
        "Whoever may run droveway is an administrator, whom the lock does not stop; the lock stays as it is.",
    ),
    14: (
        "The disk configuration that is asked for suits the image.",
        "No command asks for one: a move keeps the server's own.",
    ),
    25: (
        "Nobody else gave the server a task meanwhile.",
        "Looked at again when the move begins: if the server has a task by then, the move ends undone.",
    ),
}
"""Nova's checks that have no rule here: what each requires, and why it has none."""

END_RULES: Final[tuple[Rule[EndFacts], ...]] = (
    Rule((2,), server.waits_to_be_ended, (CONFIRM, REVERT)),
    Rule((3,), server.has_a_finished_migration, (CONFIRM, REVERT)),
    Rule((4,), server.source_can_clean_up, (CONFIRM, REVERT)),
    Rule((), server.destination_can_be_asked, (CONFIRM, REVERT)),
    Rule((), server.destination_shows_its_copy, (CONFIRM,)),
    Rule((), server.source_can_take_back, (REVERT,)),
    Rule((5,), flavor.revert_keeps_the_quotas, (REVERT,)),
)
"""The rules for a confirm or a revert, whether a person asks for it or a policy does."""

END_NOT_HERE: Final = {1: NOT_HERE[6]}


def check(facts: Facts) -> None:
    """Raise `droveway.errors.Refused` naming the first rule that the move breaks."""
    _check(RULES, facts.kind, facts)


def check_end(kind: str, facts: EndFacts) -> None:
    """Raise `droveway.errors.Refused` naming the first rule that the confirm or revert (``kind``) breaks."""
    _check(END_RULES, kind, facts)


def _check(rules: tuple[Rule[F], ...], kind: str, facts: F) -> None:
    for rule in rules:
        broken = rule.check(facts) if kind in rule.kinds else None
        if broken is not None:
            raise Refused(broken)
