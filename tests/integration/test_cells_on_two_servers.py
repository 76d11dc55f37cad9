"""Moves between cells by daemons: one cell on PostgreSQL, one on MariaDB, and each server is killed in every phase."""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from oslo_utils import units
from support.daemons.daemons import LONG, Daemon, Installation, installation
from support.daemons.sleeper import TESTS
from support.labs.small_lab import assert_balanced, history, is_released, read_move, until
from support.labs.snapshot import Snapshot
from support.servers import mariadb_server, postgres_server, zookeeper_server
from support.servers.image_process import ImageProcess
from support.servers.spread import Server, Spread

from droveway.lab import cloud
from droveway.persistence.journal import moves
from droveway.persistence.journal.states import State

_HOST: Final = "{vcpus: 8, memory_mb: 2048, disk_gb: 10}"

_SERVER: Final = "flavor: small, image: base, ports: [{}], volumes: [{size_gb: 1}]"

_CLOUD: Final = f"""
options: {{cross_cell: true}}
cells:
  cell1: {{hosts: {{host1: {_HOST}}}}}
  cell2: {{hosts: {{host3: {_HOST}}}}}
flavors:
  small: {{vcpus: 1, memory_mb: 256, root_gb: 0}}
images: {{base: {{size_mb: 4}}}}
servers:
  web: {{host: host1, {_SERVER}}}
  db: {{host: host3, {_SERVER}}}
  idle: {{host: host1, flavor: small, image: base, state: stopped}}
"""

HABIT: Final = str(TESTS / "support" / "habits" / "pausing")


class Part(NamedTuple):
    """What a round has one server do: a move, and then its end; each waits before a step."""

    there: str
    ends: str
    back: str


class Round(NamedTuple):
    """What both servers do, and which cell's server is killed while both moves of theirs wait: there, and back."""

    web: Part
    db: Part
    there: str
    back: str
    transfer: str = "direct"


ROUNDS: Final = (
    Round(
        Part("mark_migrating", "revert", "hide_target"), Part("show_target", "revert", "show_source"), "cell1", "cell2"
    ),
    Round(
        Part("show_target", "revert", "show_source"), Part("mark_migrating", "revert", "hide_target"), "cell2", "cell1"
    ),
    Round(
        Part("hide_source", "revert", "settle_records"),
        Part("carry_late_writes", "revert", "remove_target_records"),
        "cell1",
        "cell1",
    ),
    Round(
        Part("carry_late_writes", "confirm", "remove_source_records"),
        Part("hide_source", "confirm", "check_destination_copy"),
        "cell2",
        "cell1",
    ),
    Round(
        Part("finish_records", "confirm", "remove_source_records"),
        Part("finish_source_records", "revert", "remove_target_records"),
        "cell1",
        "cell2",
        "image",
    ),
)
"""In turns.  Web is in cell1 and goes to cell2, db the other way; in the last one each is where the other was."""


class Cells:
    """Daemons whose moves wait where they are told to, over two cells with a database server each."""

    def __init__(self, site: Installation, servers: dict[str, Server], folder: Path) -> None:
        self.site = site
        self._servers = servers
        self._folder = folder
        self._environment = {"PYTHONPATH": os.pathsep.join([HABIT, str(TESTS)]), "PAUSER": str(folder)}

    def conductor(self, name: str) -> Daemon:
        """A conductor whose moves wait at the places that `pause` names."""
        return self.site.conductor(name, **self._environment)

    def pause(self, server: str, step: str) -> None:
        """Let the server's next move wait before this step."""
        new = self._folder / "new"
        new.write_text(f"{step} execute before")
        new.rename(self._folder / f"{server}.place")

    def await_pause(self, server: str) -> None:
        """Wait until its move waits there."""
        until((self._folder / f"{server}.there").exists, f"the place at which {server} is to wait", LONG)

    def go_on(self, server: str) -> None:
        """Let it go on."""
        (self._folder / f"{server}.there").unlink()

    def lose(self, servers: dict[str, str], cell: str) -> None:
        """Kill the cell's server under these servers' moves, and bring it back once each says that it misses it."""
        for server in servers:
            self.await_pause(server)
        self.kill(cell)
        for server in servers:
            self.go_on(server)
        for server, move in servers.items():
            until(lambda move=move: self.waits(move, cell), f"that the move of {server} waits for {cell}", LONG)
            assert not is_released(self.site.lab, move)
        self.start(cell)

    def kill(self, cell: str) -> None:
        """End the cell's server as a power cut would."""
        self._servers[cell].kill()

    def start(self, cell: str) -> None:
        """Start it again; it answers when this returns."""
        self._servers[cell].start()

    def waits(self, move: str, cell: str) -> bool:
        """Whether the move says that it waits for the cell."""
        return f"cell {cell}," in (read_move(self.site.lab, move).waits_for or "")

    def rests(self, move: str) -> str:
        """Where the move rests, nothing having failed in it."""
        state = self.site.await_rest_of(move)
        assert [(row.step, row.error) for row in history(self.site.lab, move) if row.error] == []
        return state

    def ask(self, server: str, *words: str) -> str:
        """The server's move, once the command has asked for it, or for its end."""
        self.site.done("server", *words)
        with self.site.lab.journal.read() as session:
            return next(row.id for row in moves.open_moves(session) if row.server_name == server)


@pytest.fixture(scope="module", name="cloud")
def fixture_cloud() -> cloud.Cloud:
    return cloud.parse_cloud(_CLOUD, "two servers")


@pytest.fixture(scope="module", name="servers")
def fixture_servers() -> Iterator[dict[str, Server]]:
    with (
        postgres_server.running_server() as first,
        mariadb_server.running_server() as second,
        postgres_server.running_server() as other,
    ):
        yield {"cell1": first, "cell2": second, "other": other}


@pytest.fixture(name="cells")
def fixture_cells(
    rest: Snapshot, servers: dict[str, Server], zookeeper: zookeeper_server.Server, tmp_path: Path
) -> Iterator[Cells]:
    lab = rest.restore()
    spread = Spread(servers["other"], cell_cell1=servers["cell1"], cell_cell2=servers["cell2"])
    with installation(lab, tmp_path, zookeeper.hosts, spread) as site:
        images = "".join(f"{name} = {value}\n" for name, value in site.cloud.image_settings()["glance"].items())
        with site.configuration.open("a") as file:
            file.write(f"\n[cross_cell]\nallowed = true\n\n[glance]\n{images}")
        yield Cells(site, servers, tmp_path)
    lab.close()


def disk_of(site: Installation, host: str, server: str) -> str:
    """Return the digest of the server's only disk on the host."""
    (disk,) = site.lab.layout.host(host).rglob(f"{server}/disk")
    return hashlib.sha256(disk.read_bytes()).hexdigest()


def stored(site: Installation) -> list[str]:
    """Name the files that the image service keeps."""
    return sorted(path.name for path in site.lab.layout.images.iterdir())


def test_a_cells_server_that_is_killed_is_waited_for_in_every_phase(cells: Cells) -> None:
    """R1-31: of either make, of either part, there and back; nothing fails, and each server is in one cell."""
    site, homes = cells.site, {"web": "cell1", "db": "cell2"}
    site.workers()
    cells.conductor("conductor")
    for number, each in enumerate(ROUNDS):
        parts = {"web": each.web, "db": each.db}
        found = {}
        for name, part in parts.items():
            cells.pause(name, part.there)
            cell = {"cell1": "cell2", "cell2": "cell1"}[homes[name]]
            found[name] = cells.ask(name, "migrate", name, "--to-cell", cell, "--transfer", each.transfer)
        cells.lose(found, each.there)
        assert [cells.rests(move) for move in found.values()] == [State.VERIFYING] * 2, number
        for name, part in parts.items():
            cells.pause(name, part.back)
            assert cells.ask(name, part.ends, name) == found[name]
        cells.lose(found, each.back)
        for name, part in parts.items():
            assert cells.rests(found[name]) == (State.DONE if part.ends == "confirm" else State.REVERTED), number
            if part.ends == "confirm":
                homes[name] = {"cell1": "cell2", "cell2": "cell1"}[homes[name]]
        assert_balanced(site.lab)
    assert homes == {"web": "cell1", "db": "cell1"}
    assert {name: site.told("server", "show", name)["cell"] for name in homes} == homes


def test_a_conductor_that_slept_while_its_cell_was_away_changes_nothing(cells: Cells) -> None:
    """It wakes with a step in hand that another one has done since, beyond the outage."""
    site = cells.site
    site.workers()
    first = cells.conductor("first")
    cells.pause("db", "hide_source")
    move = cells.ask("db", "migrate", "db", "--to-cell", "cell1")
    cells.await_pause("db")
    first.process.send_signal(signal.SIGSTOP)
    cells.kill("cell2")
    second = site.conductor("second")
    until(lambda: cells.waits(move, "cell2"), "that the next conductor misses the cell", LONG)
    cells.start("cell2")
    assert cells.rests(move) == State.VERIFYING, second.text()
    cells.go_on("db")
    first.process.send_signal(signal.SIGCONT)
    until(lambda: "was lost: droveway.errors.Fenced: epoch 1 no longer stands" in first.text(), "a lost claim", LONG)
    assert_balanced(site.lab)
    cells.ask("db", "confirm", "db")
    assert cells.rests(move) == State.DONE
    assert_balanced(site.lab)


def test_an_image_service_that_is_killed_in_the_middle_of_a_disk_is_waited_for(cells: Cells) -> None:
    """The service is a process of its own. It dies while the source uploads and while the destination downloads."""
    site = cells.site
    server = site.told("server", "show", "idle")["id"]
    was, images_before = disk_of(site, "host1", server), stored(site)
    images = ImageProcess(site.lab.layout)
    images.start("upload", 2 * units.Mi)
    try:
        served = site.cloud.image_settings()["glance"]["endpoint_override"]
        site.configuration.write_text(site.configuration.read_text().replace(served, images.endpoint))
        site.workers()
        site.conductor()
        move = cells.ask("idle", "migrate", "idle", "--to-cell", "cell2", "--transfer", "image")
        images.await_death()
        images.start("download", 2 * units.Mi)
        images.await_death()
        assert not is_released(site.lab, move)
        images.start()
        assert cells.rests(move) == State.VERIFYING
        assert disk_of(site, "host3", server) == was
        assert stored(site) == images_before
        cells.ask("idle", "revert", "idle")
        assert cells.rests(move) == State.REVERTED
    finally:
        images.stop()
    assert disk_of(site, "host1", server) == was
    assert_balanced(site.lab)
