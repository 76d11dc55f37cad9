"""An action whose session was given up meanwhile looks at its fence before its next effect."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.rigs.worker_rig import Cloud, cloud

from droveway.errors import Fenced
from droveway.wire import commands
from droveway.workers.context import Context


@pytest.fixture(name="site")
def fixture_site(tmp_path: Path) -> Iterator[Cloud]:
    with cloud(tmp_path) as made:
        yield made


def begun(site: Cloud) -> tuple[Context, commands.Command]:
    command = site.command("alpha", "set_aside")
    return Context(site.hosts["alpha"], command), command


def test_who_has_another_session_does_nothing_for_an_older_claim(site: Cloud) -> None:
    context, command = begun(site)
    with site.asked(command):
        site.coordination.client.restart()
        site.set_epoch(2)
        with pytest.raises(Fenced):
            context.effect("next")


def test_who_has_another_session_goes_on_while_its_claim_stands(site: Cloud) -> None:
    context, command = begun(site)
    with site.asked(command):
        site.coordination.client.restart()
        context.effect("next")


def test_who_has_its_session_is_asked_only_before_what_replaces(site: Cloud) -> None:
    context, command = begun(site)
    with site.asked(command):
        site.set_epoch(2)
        context.effect("next")
        with pytest.raises(Fenced):
            context.replacing("next")
