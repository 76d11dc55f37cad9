"""Calls to cloud services that are not sent any more once the claim of their move is lost."""

from __future__ import annotations

import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.rigs.engine_rig import Rig, embedded_rig

from droveway.clients import send_guard
from droveway.clients.rest import Rest
from droveway.engines.conductor import fencing
from droveway.errors import Fenced


class Service:
    """Notes what it is sent."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    def request(self, _url: str, method: str, **_options: Any) -> Any:
        """Answer 200 to everything."""
        self.sent.append(method)
        return types.SimpleNamespace(status_code=200)


@pytest.fixture(name="rig")
def fixture_rig(tmp_path: Path) -> Iterator[Rig]:
    with embedded_rig(tmp_path) as rig:
        yield rig


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_nothing_is_changed_under_a_claim_that_was_lost(rig: Rig, method: str) -> None:
    """Another one takes the move while the sender sleeps at the last moment before it sends."""
    service, move = Service(), rig.submit()
    taken: list[int] = []
    rest = Rest(service, "network", lambda *_: taken and fencing.claim(rig.journal, move, "other"))
    with fencing.guarding_calls(rig.journal, move, fencing.claim(rig.journal, move, "me")):
        rest.send(method, "/ports")
        taken.append(1)
        with pytest.raises(Fenced, match="no longer stands"):
            rest.send(method, "/ports")
        rest.send("GET", "/ports")
    assert service.sent == [method, "GET"]


def test_nothing_is_changed_for_a_move_that_was_purged(rig: Rig) -> None:
    service = Service()
    with fencing.guarding_calls(rig.journal, "gone", 1), pytest.raises(Fenced):
        Rest(service, "volume").send("DELETE", "/attachments/1")
    assert service.sent == []


def test_a_call_that_no_claim_covers_is_sent(rig: Rig) -> None:
    """End a guard: the calls after it are sent."""
    service = Service()
    with fencing.guarding_calls(rig.journal, "gone", 1):
        pass
    Rest(service, "image").send("POST", "/images")
    assert service.sent == ["POST"]
    send_guard.ask()
