"""Upgrade an installation of an earlier release in the middle of its moves: every one of them comes to its end."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Final

import pytest
import sqlalchemy as sa
from proofs import leftovers
from support.daemons import earlier
from support.daemons.daemons import LONG, Daemon, Installation, installation
from support.daemons.earlier import Release, Spot
from support.labs.small_lab import assert_balanced, is_released, until
from support.rows import left_over
from support.servers import postgres_server, zookeeper_server

from droveway.flows import registry
from droveway.lab import build
from droveway.persistence.journal.states import ENDED, State
from droveway.persistence.journal.tables import Move
from droveway.persistence.nova import catalog
from droveway.workers.hypervisors import guests_log

HOSTS: Final = ("host1", "host2", "host3")

WAIT: Final = 5 * LONG
"""Seconds for which many flows are waited for."""

ENDS: Final = {"confirm", "revert"}
"""Flows that end a move: a resize comes before them, and is not halted."""

TOO_OLD: Final = re.compile(r"Move (\S+) .*: step \S+ (?:\(undo\) )?failed on host .* upgrade it first")
"""The conductor of this tree logs this where an earlier worker cannot prove that a guest may start."""


KINDS: Final = ("resize", "confirm", "revert", "delete")
"""The flows of the earlier release; a migration has the graph of a resize."""

PARTS: Final = 4
"""Parts that all places come in: `tools/test` runs the first one, with those at rest, and `tools/upgrade` every one."""


def places(part: int) -> list[Spot]:
    """List the places of one part."""
    found = [spot for kind in KINDS for spot in earlier.spots(kind)]
    return [spot for at, spot in enumerate(found) if (at % PARTS if spot.step else 0) == part]


def cloud_of(servers: list[str]) -> str:
    """Describe a cloud of these servers, each with a disk, a port and a volume, on three hosts in turn."""
    host = "{vcpus: 200, memory_mb: 163840, disk_gb: 900}"
    has = "flavor: small, image: base, ports: [{}], volumes: [{size_gb: 1}]"
    lines = "".join(f"  {name}: {{host: {HOSTS[at % 3]}, {has}}}\n" for at, name in enumerate(servers))
    return f"""
hypervisor: sandbox
cells: {{cell1: {{hosts: {{{", ".join(f"{name}: {host}" for name in HOSTS)}}}}}}}
flavors:
  small: {{vcpus: 1, memory_mb: 256, root_gb: 1}}
  large: {{vcpus: 2, memory_mb: 512, root_gb: 1, swap_mb: 1}}
images: {{base: {{size_mb: 4}}}}
servers:
{lines}"""


class Upgrade:
    """Holds the servers whose flows the earlier release leaves in the middle, and takes them to their ends."""

    def __init__(self, site: Installation, release: Release, where: dict[str, Spot]) -> None:
        self.site = site
        self.release = release
        self.where = where
        self.moves: dict[str, str] = {}

    def begin(self) -> None:
        """Let the earlier release bring each flow to its place, and end without giving anything back."""
        lab = self.site.lab
        ids = {name: catalog.find_server(lab.api, lab.cell_databases, name).id for name in self.where}
        halts = {ids[name]: spot for name, spot in self.where.items()}
        ends = [(spot.kind, name) for name, spot in self.where.items() if spot.kind in ENDS]
        # A worker is not told of which flow a command is, and a resize has steps of the same names as its ends.
        self.release.halt({server: spot for server, spot in halts.items() if spot.kind not in ENDS})
        self.workers = self.release.workers(self.site)
        conductor = self.release.conductor(self.site, len(self.where) + 2)
        asked = [("resize" if spot.kind in ENDS else spot.kind, name) for name, spot in self.where.items()]
        self.moves = self.release.ask(self.site, asked)
        until(lambda: all(self.move(name).state == State.VERIFYING for _, name in ends), "what is to be ended", WAIT)
        self.release.halt(halts)
        self.release.ask(self.site, ends)
        resting = {name: spot.phase for name, spot in self.where.items() if spot.phase in set(State)}
        self.release.await_halted(ids[name] for name in self.where if name not in resting)
        until(lambda: all(self.move(name).state == state for name, state in resting.items()), "the moves at rest", WAIT)
        conductor.kill()

    def go_on(self) -> None:
        """Upgrade the journal, then the conductor, then one worker after another, until all flows rest."""
        code, said, _ = self.site.droveway("upgrade", "check", "-f", "json")
        failures = {row["finding"] for row in json.loads(said) if row["level"] == "failure"}
        assert (code, failures) == (2, {"schema-other", "worker-lacks"})
        assert "0009" in self.site.refused("move", "list"), "no command of this release writes into that journal"
        self.site.done("db", "sync")
        conductor = self.site.conductor("present", OS_CONDUCTOR__THREADS=str(len(self.where) + 2))
        until(lambda: self.has_gone_on(conductor), "the end of what needs no worker of this release", WAIT)
        for host, worker in self.workers.items():
            worker.kill()
            self.site.worker(host)
        until(lambda: all(self.rests(name) for name in self.where), "the rest of all flows", WAIT)

    def end(self) -> None:
        """Take up again what was parked, then confirm one half of what waits for it, and revert the other."""
        for name in self.where:
            if self.move(name).state == State.NEEDS_OPERATOR:
                self.site.done("move", "retry", self.moves[name])
        until(lambda: not any(self.is_parked(name) for name in self.where), "what was parked to go on", WAIT)
        until(lambda: all(self.rests(name) for name in self.where), "its rest", WAIT)
        waiting = [name for name in self.where if self.move(name).state == State.VERIFYING]
        assert {self.move(name).policy for name in waiting} == {"deadline"}, "earlier it was called manual"
        for at, name in enumerate(waiting):
            self.site.done("move", ("confirm", "revert")[at % 2], self.moves[name])
        until(lambda: all(self.move(name).state in ENDED for name in self.where), "the end of all moves", WAIT)

    def has_gone_on(self, conductor: Daemon) -> bool:
        """Tell whether every flow rests, waits for a worker that will never answer, or for one of this release."""
        told = {found[1] for found in TOO_OLD.finditer(conductor.log.read_text())}
        return all(
            self.rests(name) or spot.phase == earlier.UNANSWERED or self.moves[name] in told
            for name, spot in self.where.items()
        )

    def is_refused(self, name: str) -> bool:
        """Tell whether the flow had yet to choose its destination, of which each had an earlier worker."""
        names = registry.graph("resize", 1).names()
        chooses = names.index("choose_destinations")
        early = self.where[name].direction == "execute" and self.where[name].step in names[: chooses + 1]
        refused = "upgrade it first" in str(self.move(name).error)
        assert early or not refused, name
        return refused

    def move(self, name: str) -> sa.Row[tuple[str, str, str, str | None]]:
        """Read of the server's move what is looked at here: the earlier release's journal lacks other columns."""
        columns = (Move.server, Move.state, Move.policy, Move.error)
        with self.site.lab.journal.read() as session:
            return session.execute(sa.select(*columns).where(Move.id == self.moves[name])).one()

    def rests(self, name: str) -> bool:
        """Tell whether the move waits for a person, or nobody runs a flow of it any more."""
        return self.is_parked(name) or is_released(self.site.lab, self.moves[name])

    def is_parked(self, name: str) -> bool:
        """Tell whether the move needs an operator."""
        return self.move(name).state == State.NEEDS_OPERATOR


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("part", range(PARTS if os.environ.get("EVERY_PLACE") else 1))
def test_what_an_earlier_release_left_in_the_middle_comes_to_its_end(tmp_path: Path, part: int) -> None:
    """Halt flows at steps in each direction, at commands that nobody answered, and at rest; then upgrade."""
    release = Release(tmp_path / "earlier")
    where = {f"server{at}": spot for at, spot in enumerate(places(part))}
    lab = release.build(tmp_path / "lab", cloud_of(list(where)))
    try:
        with (
            zookeeper_server.running_server(tmp_path / "zookeeper") as zookeeper,
            postgres_server.running_server() as databases,
            installation(lab, tmp_path, zookeeper.hosts, databases) as site,
        ):
            release.journal(site, databases)
            upgrade = Upgrade(site, release, where)
            upgrade.begin()
            upgrade.go_on()
            for words in (["move", "list"], ["db", "sync"], ["db", "check"], ["conductor", "run"]):
                assert "has schema 0009 and this Droveway knows up to 0006" in release.refused(site, *words)
            upgrade.end()
            left_over.await_none(lab, site.session)
            assert_balanced(lab)
            assert guests_log.overlaps(lab.layout.guests_log) == []
            for at, (name, spot) in enumerate(where.items()):
                move = upgrade.move(name)
                # Whether a mute worker is replaced before its command is overdue is for the machine to say.
                if spot.phase != earlier.UNANSWERED:
                    assert (move.state == State.FAILED) == (spot.fails or upgrade.is_refused(name)), name
                if spot.kind == "delete":
                    assert leftovers.of(lab, move.server) == [], name
                else:
                    has = catalog.find_server(lab.api, lab.cell_databases, name)
                    moved = move.state == State.DONE
                    assert (has.host != HOSTS[at % 3], has.flavor) == (moved, "large" if moved else "small"), name
    finally:
        lab.close()
        build.destroy(tmp_path / "lab")
