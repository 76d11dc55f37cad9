"""A server of several disks on its way between two hosts, over mutual TLS, while the worker of either is killed."""

from __future__ import annotations

import contextlib
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import sqlalchemy as sa
from support import checksums
from support.daemons.daemons import LONG, Daemon, Installation, installation
from support.labs import snapshot
from support.labs.small_lab import assert_balanced, history, in_child, read_move, until
from support.labs.snapshot import Snapshot
from support.servers import zookeeper_server
from support.servers.certificates import Authority

from droveway.cli.view.rate import TOO_EARLY
from droveway.engines.operations import move_requests
from droveway.engines.operations.submit import MoveSpec, submit
from droveway.lab import build, cloud
from droveway.lab.session import Lab
from droveway.persistence.journal.states import State
from droveway.persistence.nova.cell import Instance
from droveway.workers.directories import Directories
from droveway.workers.transfer.chunk_log import log_name
from droveway.workers.transfer.copying import SYNC_BYTES

SOURCE: Final = "host1"
DESTINATION: Final = "host2"
MIB: Final = 1 << 20
COPIED: Final = ("disk", "disk.config", "disk.eph0")
"""Root, config drive and ephemeral: all but swap, which is made anew."""

LIMIT: Final = 6
"""MiB a second for the server: what there is to copy takes a quarter of a minute."""

_HOST: Final = "{vcpus: 8, memory_mb: 2048, disk_gb: 20}"
CLOUD: Final = f"""
cells: {{cell1: {{hosts: {{{SOURCE}: {_HOST}, {DESTINATION}: {_HOST}}}}}}}
flavors:
  small: {{vcpus: 1, memory_mb: 256, root_gb: 1, ephemeral_gb: 1, swap_mb: 2}}
  large: {{vcpus: 2, memory_mb: 512, root_gb: 1, ephemeral_gb: 1, swap_mb: 4}}
images: {{base: {{size_mb: 640}}}}
servers:
  web: {{flavor: small, host: {SOURCE}, image: base, ports: [{{}}], volumes: [{{size_gb: 1}}], state: stopped}}
"""
"""A sixteenth of the image is data."""


@pytest.fixture(scope="module", name="rest")
def fixture_rest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Snapshot]:
    folder = tmp_path_factory.mktemp("daemons")
    in_child(lambda: build.create(folder / "lab", cloud.parse_cloud(CLOUD, "disks")).close())
    yield snapshot.take(folder / "lab", folder / "kept")
    build.destroy(folder / "lab")


@pytest.fixture(name="site")
def fixture_site(
    rest: Snapshot, protected_zookeeper: zookeeper_server.Server, authority: Authority, tmp_path: Path
) -> Iterator[Installation]:
    lab = rest.restore()
    lab.layout.guests_log.touch()
    with installation(lab, tmp_path, protected_zookeeper.hosts, None, authority) as made:
        yield made
    lab.close()


def instances(lab: Lab, host: str) -> Directories:
    return Directories(lab.layout.host(host) / "instances")


def used(lab: Lab) -> str:
    """Give the server's ephemeral disk bytes, and the server a config drive; its id."""
    with lab.cell_databases["cell1"].read() as session:
        server = session.scalars(sa.select(Instance.uuid).where(Instance.display_name == "web")).one()
    own, made = instances(lab, SOURCE), random.Random(7)
    with own.path(server, "disk.eph0").open("r+b") as disk:
        for offset in range(0, 40, 2):
            disk.seek(offset * 5 * MIB)
            disk.write(made.randbytes(2 * MIB))
    own.path(server, "disk.config").write_bytes(made.randbytes(MIB))
    formats = own.formats(server)
    assert set(formats) == {"disk", "disk.eph0", "disk.swap", "disk.config"}
    own.write_formats(server, server, formats | {"disk.config": "raw"})
    return server


def proved(site: Installation, server: str, move: str) -> dict[str, int]:
    """The bytes of each disk that are proved at the destination, whatever happens to its worker."""
    part = instances(site.lab, DESTINATION).path(f"{server}.part-{move}-{DESTINATION}")
    found = {}
    for disk in COPIED:
        log = part / log_name(disk)
        lines = log.read_text().splitlines()[1:] if log.exists() else []
        found[disk] = sum(int(line.split()[1]) for line in lines)
    return found


def begun(site: Installation, server: str, move: str) -> set[str]:
    """The disks of which some bytes are at the destination."""
    part = instances(site.lab, DESTINATION).path(f"{server}.part-{move}-{DESTINATION}")
    return {disk for disk in COPIED if (part / disk).exists() and (part / disk).stat().st_blocks}


def test_several_disks_go_on_side_by_side_where_they_were_when_either_end_died(site: Installation) -> None:
    """R0-05: the source's worker is killed, then the destination's: nothing that was proved is asked for again."""
    limited = {"OS_WORKER__TRANSFER_LIMIT_EACH": str(LIMIT), "OS_ZOOKEEPER__SESSION_TIMEOUT": "60"}
    server = used(site.lab)
    workers = {}
    conductor = site.conductor()
    for host in (SOURCE, DESTINATION):
        workers[host] = site.worker(host, **limited)
        site.await_worker(host)
    move = submit(site.lab, MoveSpec(server="web", flavor="large")).id
    until(lambda: (read_move(site.lab, move).progress_done or 0) >= 12 * MIB, "some of the copy", LONG)
    with _standing_still(workers[DESTINATION]):
        assert begun(site, server, move) == set(COPIED), "side by side"
        _assert_told(site, move, resumed=False)
        workers[SOURCE].kill()
        workers[SOURCE] = site.worker(SOURCE, **limited)

    def each_is_half_there() -> bool:
        found = proved(site, server, move)
        return found["disk"] >= SYNC_BYTES <= found["disk.eph0"]

    until(each_is_half_there, "half of either disk", LONG)
    with _standing_still(workers[DESTINATION]):
        kept = proved(site, server, move)
        assert kept["disk.config"] == MIB
        assert sum(kept.values()) < 80 * MIB, "in the middle of it"
        workers[DESTINATION].kill()
    workers[DESTINATION] = site.worker(DESTINATION, **limited)

    def goes_on() -> bool:
        found = read_move(site.lab, move)
        return found.progress_kept == sum(kept.values()) and (found.progress_seconds or 0) > TOO_EARLY

    until(goes_on, "what was kept, and a rate", LONG)
    with _standing_still(workers[DESTINATION]):
        _assert_told(site, move, resumed=True)

    assert site.await_rest(move) == State.VERIFYING, conductor.text()
    [row] = [row for row in history(site.lab, move) if row.step == "copy_disks" and row.result]
    assert row.result is not None
    assert row.result["variant"] == "pull"
    disks = {disk["name"]: disk for disk in row.result["disks"]}
    assert set(disks) == set(COPIED)
    for name, disk in disks.items():
        aside = instances(site.lab, SOURCE).path(f"{server}_resize", name)
        assert disk["checksum"] == checksums.recorded(aside)
        assert disk["sent"] == disk["allocated"] - kept[name]
        assert _same_bytes(site, server, name)
    assert instances(site.lab, DESTINATION).path(server, "disk.swap").stat().st_size == 4 * MIB, "made anew"
    assert_balanced(site.lab)
    move_requests.file_request(site.lab, move, move_requests.confirm)
    assert site.await_rest(move) == State.DONE
    assert_balanced(site.lab)


@contextlib.contextmanager
def _standing_still(daemon: Daemon) -> Iterator[None]:
    """A daemon that does nothing meanwhile, so that what is seen of it holds however long the look takes."""
    daemon.process.send_signal(signal.SIGSTOP)
    yield
    if daemon.process.poll() is None:
        daemon.process.send_signal(signal.SIGCONT)


def _assert_told(site: Installation, move: str, *, resumed: bool) -> None:
    """`move show`: how much there is, how fast it comes and when all is there; all bytes of all disks are one sum."""
    told = site.told("move", "show", move)
    assert told["step"] == "copy_disks"
    assert 0 < told["progress_done"] < told["progress_total"]
    assert 80 * MIB <= told["progress_total"] <= 84 * MIB
    assert 0 < told["progress_rate"] <= 1.25 * LIMIT * MIB
    missing = told["progress_total"] - told["progress_done"]
    assert told["progress_left"] == pytest.approx(missing / told["progress_rate"], rel=0.05, abs=0.2)
    [line] = [line for line in site.done("move", "show", move).splitlines() if line.startswith("progress")]
    assert " MiB (" in line
    assert " MiB/s, " in line
    assert " s left to copy, told " in line
    assert ("resumed at" in line) == resumed


def _same_bytes(site: Installation, server: str, disk: str) -> bool:
    kept = instances(site.lab, SOURCE).path(f"{server}_resize", disk)
    copy = instances(site.lab, DESTINATION).path(server, disk)
    with kept.open("rb") as one, copy.open("rb") as other:
        while block := one.read(4 * MIB):
            if other.read(len(block)) != block:
                return False
        return not other.read(1)
