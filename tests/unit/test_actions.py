"""Each action of a worker is declared once on the wire, done by one function, and killed in the tests."""

from __future__ import annotations

import inspect
import typing
from pathlib import Path
from typing import Any, Final

import pytest
from support.rigs import worker_stages
from support.rigs.valid_answers import EXAMPLES
from support.rigs.worker_rig import cloud

from droveway.conf import upgrade_levels
from droveway.engines.conductor import eligibility
from droveway.flows import registry
from droveway.flows.steps.hosts.command import HostStep
from droveway.wire import commands, queries
from droveway.wire.levels import LEVEL, SINCE
from droveway.wire.values import ACTION_VERSION
from droveway.workers import host_queries
from droveway.workers.actions import dispatch, table

CLOSED: Final = {
    1: {
        "check_copy", "check_destination", "check_health", "check_set_aside", "connect", "copy_disks", "define_guest",
        "describe_guest", "discard_destination", "discard_source", "disconnect", "find_storage", "fit_disks",
        "offer_disks", "prepare_source_guest", "remove_guest", "restore_disks", "set_aside", "start_guest",
        "stop_guest",
    },
    2: {"purge_kept"},
    3: {"list_directories", "list_guests"},
    4: {"check_guest", "digest_disks", "keep_copy", "prepare_start"},
    5: {"rename_copy"},
    6: {"download_disks", "upload_disks"},
    7: {"probe_transfer"},
}  # fmt: skip
"""What came with the levels that are spoken already: nothing may join them or leave them."""


@pytest.mark.parametrize("level", CLOSED)
def test_a_level_that_is_spoken_stays_as_it_is(level: int) -> None:
    """Workers that speak it are asked for nothing but what it came with."""
    found = {name for name, since in SINCE.items() if since == level}
    assert found == CLOSED[level], (
        f"level {level} is spoken by workers that know {sorted(CLOSED[level])} of it: give a new action or inquiry "
        f"since={max(CLOSED) + 1}, and leave the others as they are"
    )


def test_there_is_no_gap_between_the_levels() -> None:
    assert set(SINCE.values()) == set(range(1, LEVEL + 1)), "a new level is one more than the highest before"
    (option,) = upgrade_levels.OPTS
    assert option.type.max == LEVEL


def test_a_pin_below_what_a_move_asks_of_hosts_chooses_an_older_graph_or_forbids_moves() -> None:
    asked = {action for step in every_step() for action in (step.action_name(), *step.extra_actions) if action}
    assert not eligibility.pinned_below(None)
    for action in asked:
        assert action in commands.ACTIONS, f"no action is called {action}: declare it in ACTIONS of wire/commands.py"
        for pinned in range(1, SINCE[action]):
            refused = eligibility.pinned_below(pinned)
            asked_for = f"{action}@{ACTION_VERSION}" in eligibility.needed(pinned)
            assert refused or not asked_for, f"{action} came with level {SINCE[action]}, pinned is {pinned}"


def every_step() -> list[Any]:
    return [step for kind in registry.kinds() for step in registry.latest(kind).walk()]


@pytest.mark.parametrize("name", commands.ACTIONS)
def test_an_action_has_a_right_answer_in_the_tests(name: str) -> None:
    answer = commands.ACTIONS[name].answer
    assert answer in EXAMPLES, f"write what {name} answers rightly in EXAMPLES of tests/support/rigs/valid_answers.py"


@pytest.mark.parametrize("name", commands.ACTIONS)
def test_the_worker_takes_the_details_that_are_declared(name: str) -> None:
    action, declared = table.ACTIONS[name], commands.ACTIONS[name].details
    for body in {action.execute, action.revert} - {table.nothing}:
        _, details = inspect.signature(body).parameters
        found = typing.get_type_hints(body)[details]
        assert found is declared, f"{body.__name__} takes {found.__name__}, and the wire has {declared.__name__}"


def test_every_undo_that_is_written_is_entered() -> None:
    written = {
        name.removeprefix("undo_"): body
        for module in dispatch.MODULES
        for name, body in vars(module).items()
        if name.startswith("undo_") and body.__module__ == module.__name__
    }
    entered = {name: action.revert for name, action in table.ACTIONS.items() if action.revert is not table.nothing}
    assert written == entered, f"enter {sorted(written.keys() - entered.keys())} with @undo"


def test_what_is_entered_is_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "ACTIONS", dict(table.ACTIONS))

    def unheard_of(*_: object) -> dict[str, Any]:
        return {}

    with pytest.raises(LookupError, match="no action is called unheard_of: declare it in ACTIONS"):
        table.action()(unheard_of)
    with pytest.raises(LookupError, match="unheard_of undoes no action"):
        table.undo(unheard_of)


def test_every_inquiry_is_answered() -> None:
    lacking = queries.QUERIES.keys() ^ host_queries.QUESTIONS.keys()
    assert not lacking, f"{sorted(lacking)}: name them in QUESTIONS of workers/host_queries.py and in wire/queries.py"


def test_every_action_is_killed_at_each_of_its_effects(tmp_path: Path) -> None:
    """Each is in the list of stages.  It is carried out, and killed, by tests/integration/test_worker_actions.py."""
    with cloud(tmp_path) as site:
        site.make_server()
        site.serve("alpha")
        killed = {stage.action for stage in worker_stages.every(site)}
    assert killed == commands.ACTIONS.keys(), (
        f"no test kills {sorted(commands.ACTIONS.keys() - killed)}: add a Stage in tests/support/rigs/worker_stages.py"
    )


@pytest.mark.parametrize(
    "step", {step for step in every_step() if issubclass(step, HostStep)}, ids=lambda s: s.__name__
)
def test_a_host_step_sends_what_its_action_takes(step: type[HostStep]) -> None:
    declared = commands.ACTIONS[step.action_name()].details
    for body in (step.details, step.undo_details):
        found = typing.get_type_hints(body, vars(inspect.getmodule(body)))["return"]
        assert issubclass(declared, found), f"{body.__qualname__} builds {found}, and the wire has {declared}"
