"""`audit --heal` takes away what an ended move provably left, and leaves everything else as it was."""

from __future__ import annotations

import contextlib
import getpass
import json
import multiprocessing
import os
import re
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from support.operations import Stage, stage
from support.small_lab import differences, picture, until

from droveway.audit import mending
from droveway.audit.findings import Kind
from droveway.audit.healing import ORPHANS, RULES
from droveway.clients.placement import Placement
from droveway.engines.submit import Wish, submit
from droveway.errors import Refused
from droveway.lab import books
from droveway.persistence import orphans
from droveway.persistence.journal import Move, MoveStep
from droveway.workers.hypervisors import base

CLOUD = """
cells: {cell1: {hosts: {host1: {}, host2: {}, host3: {}}}}
flavors: {small: {vcpus: 1, memory_mb: 256, root_gb: 1}}
images: {base: {size_mb: 1}}
servers: {web: {flavor: small, host: host1, image: base, ports: [{}], volumes: [{size_gb: 1}]}}
"""
AMOUNTS = {"VCPU": 1, "MEMORY_MB": 256, "DISK_GB": 1}


@pytest.fixture(scope="module", name="lab")
def fixture_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A lab whose server moved from host1 to host2 for good, then to host3 and back: two moves that ended."""
    with stage(tmp_path_factory.mktemp("heal") / "lab", CLOUD) as made:
        made.cli("move", "create", "web", "--to-host", "host2", "--confirm", "auto", "--wait")
        yield made


@pytest.fixture(name="move")
def fixture_move(lab: Stage) -> Iterator[str]:
    """The move that ended; the books balance before the test, and whoever plants something takes it out again."""
    lab.assert_balanced()
    yield lab.move("web").id


def hold(lab: Stage, consumer: str, host: str) -> None:
    """Let the consumer hold something on the host."""
    facts = lab.json("host", "show", host)
    owner = {"project_id": lab.lab.identity.project, "user_id": lab.lab.identity.user}
    lab.lab.placement.ensure_allocation(consumer, {facts["node"]: AMOUNTS}, **owner)


def seen(lab: Stage) -> dict[str, object]:
    """Every row and every file; when a file came or went in a host's own directory is no matter, as a lock's."""
    return {key: facts for key, facts in picture(lab.lab.layout).items() if key.count("/") != 1 or "." in key}


def records(lab: Stage, move: str) -> list[dict[str, Any]]:
    """What the move's history tells of heals."""
    return [step.result or {} for step in lab.history(move) if step.step == orphans.STEP]


def test_what_an_ended_move_holds_is_planned_then_released(lab: Stage, move: str) -> None:
    hold(lab, move, "host1")
    before = seen(lab)
    planned = json.loads(lab.cli("audit", "--heal", "-f", "json", code=3))
    assert [(row["kind"], row["subject"], row["heal"]) for row in planned] == [("allocation", move, "mend")]
    assert "nothing was changed: droveway audit --heal --yes" in lab.error
    assert differences(before, seen(lab)) == []
    lab.cli("audit", "--heal", "--yes")
    assert "1 finding before, 0 after" in lab.error
    assert lab.held(move) == {}
    assert [(row["by"], row["outcome"]) for row in records(lab, move)] == [(getpass.getuser(), "done")]
    lab.assert_balanced()
