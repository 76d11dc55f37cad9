from __future__ import annotations

import collections
import contextlib
import gc
import itertools
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support import thinned
from support.daemons.daemons import Installation, installation
from support.labs import operations, snapshot
from support.labs.guaranteed_clouds import guaranteed
from support.labs.small_lab import in_child, small_cloud
from support.servers import mariadb_server, postgres_server, zookeeper_server
from support.servers.certificates import Authority
from support.two_faults import command

from droveway.lab import build
from droveway.lab.cloud import Cloud
from droveway.lab.libvirt_hosts import LibvirtHost, start_hosts

pytest.register_assert_rewrite("hypervisor_contract")

from libvirt_rig import LibvirtRig  # noqa: E402 - the asserts of what it imports are rewritten first

LONGEST = (
    "test_crash_elsewhere",
    "test_soak",
    "test_crash_image_backed",
    "test_crash_volume_backed",
    "test_crash_between_cells",
    "test_choosing_cells",
    "test_cells_away_steps",
    "test_revert_elsewhere",
    "test_shelving",
    "test_chaos",
    "test_crash_same_host",
    "test_crash_shelving",
    "test_crash_guaranteed",
    "test_database_faults",
    "test_daemons",
    "test_cells_on_two_servers",
    "test_stale_conductor_all",
    "test_whole_move_zookeeper",
    "test_kill_matrix_daemons",
    "test_two_faults_restores",
    "test_two_faults_deaths",
    "test_two_faults_others",
    "test_ways_out_of_parks",
    "test_declared_down",
    "test_cells_by_image",
    "test_operating",
    "test_operations_on_servers",
    "test_settling_daemons",
    "test_demo_libvirt",
    "test_systemd",
    "test_docs_console",
    "test_alternates",
    "test_split_brain_daemons",
    "test_kept_sources",
    "test_moves_on_neutron",
    "test_moves_on_openstack",
    "test_real_neutron",
    "test_keystone",
    "test_policies_on_neutron",
    "test_policies_changed",
    "test_guaranteed_ports",
    "test_guaranteed_books",
    "test_two_faults_guaranteed",
    "test_guaranteed_operations",
    "test_silent_services",
    "test_cli_moves",
    "test_split_brain_workers",
    "test_bad_input_labs",
    "test_partitions",
    "test_crash_leaks",
    "test_operations_books",
    "test_operations",
    "test_libvirt_move",
    "test_restored_journal",
    "test_quarantine_daemons",
    "test_hostile_peers",
    "test_several_disks",
    "test_audit_hosts_daemons",
    "test_daemons_tls",
    "test_zookeeper_tls",
    "test_daemons_parts",
    "test_protocol_model_whole",
    "test_operations_failing",
    "test_books_between_steps",
    "test_audit_heal_daemons",
    "test_concurrent_commands",
    "test_demo",
)
"""Begun before all others, longest first, so that no worker is left with a long file at the end.

Four files run at once, and each worker is given two in advance.
"""


PARTS = {
    "matrices": (
        "crash_", "two_faults_", "strangers", "kill_matrix_", "stale_conductor_", "chaos", "soak", "protocol_model_",
    ),
    "documents": ("docs_", "install_followed", "demo"),
}  # fmt: skip
"""Part of the integration tests → how its files' names begin after ``test_``; all others are tests of operations."""


MANY_FILES = 200
"""Open files of a test process above which it looks for garbage after a test."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Know the options that run more than else."""
    parser.addoption("--each-kill", action="store_true", help="kill four times in each move over the real services")
    parser.addoption("--every-case", action="store_true", help="run the cases too that tools/test leaves out")


def _thin_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what `support.thinned` leaves out."""
    if config.getoption("--every-case", default=False) or not all(Path(each).is_dir() for each in config.args):
        return
    left_out = thinned.left_out(item.nodeid for item in items)
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in left_out])
    items[:] = [item for item in items if item.nodeid not in left_out]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Thin the cases out and order the files; the tests of a file keep the order that they have by then."""
    _thin_out(config, items)
    if gone := [name for name in LONGEST if not Path(__file__).with_name(f"{name}.py").exists()]:
        raise pytest.UsageError(f"LONGEST names files that are not here: {', '.join(gone)}")
    ranks = {name: rank for rank, name in enumerate(LONGEST)}
    items.sort(key=lambda item: ranks.get(item.path.stem, len(ranks)))


def pytest_collection_finish() -> None:
    """Leave what was collected out of every later search for garbage: that is a million objects, and none goes."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Close the databases that labs leave open: only a search for garbage ends what refers to itself."""
    if len([*Path("/proc/self/fd").iterdir()]) > MANY_FILES:
        gc.collect()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the figures that tests have recorded: ``figure``, and the sums of crash points, plants and writes."""
    reports = [report for end in ("passed", "failed") for report in terminalreporter.stats.get(end, [])]
    told = [told for report in reports if report.when == "call" for told in report.user_properties]
    if matrices := [value for name, value in told if name == "crash points"]:
        points, converged, leaks = map(sum, zip(*matrices, strict=True))
        terminalreporter.write_line(f"crash matrix: {points} points, {converged} converged, {leaks} leaks")
        terminalreporter.write_line("these are samples: tools/matrix --full and --two run all, tools/chaos 200 moves")
    passed = [report for report in terminalreporter.stats.get("passed", []) if report.when == "call"]
    found = [value for report in passed for name, value in report.user_properties if name == "planted"]
    if wanted := [value for name, value in told if name == "planted"]:
        kinds = f"{len(set(wanted))} kinds by hypervisor"
        terminalreporter.write_line(f"audit: {len(found)} of {len(wanted)} plants found, with what mends them; {kinds}")
    if writes := sum(value for name, value in told if name == "writes"):
        wrong = sum(value for name, value in told if name == "writes out of balance")
        terminalreporter.write_line(f"books: {writes} writes of moves looked at, {wrong} out of balance")
    if faults := [value for name, value in told if name == "two faults"]:
        kinds = {kind: sum(points for each, points, _ in faults if each == kind) for kind in command.KINDS}
        points, held = sum(kinds.values()), sum(each for _, _, each in faults)
        by_kind = ", ".join(f"{kind} {count}" for kind, count in kinds.items())
        terminalreporter.write_line(f"two faults: {points} points, {held} held ({by_kind})")
    for name, value in told:
        if name == "figure":
            terminalreporter.write_line(value)
    if reports:
        terminalreporter.write_line(_times(terminalreporter))


def _times(terminalreporter: pytest.TerminalReporter) -> str:
    """How long each part lasted, in seconds of the processes that ran it side by side, and the longest files."""
    spent: collections.Counter[str] = collections.Counter()
    for report in itertools.chain.from_iterable(terminalreporter.stats.values()):
        if isinstance(report, pytest.TestReport):
            spent[Path(report.location[0]).stem.removeprefix("test_")] += report.duration
    parts: collections.Counter[str] = collections.Counter()
    for file, seconds in spent.items():
        parts[next((part for part, names in PARTS.items() if file.startswith(names)), "operations")] += seconds
    said = ", ".join(f"{part} {seconds:.0f} s" for part, seconds in parts.most_common())
    longest = ", ".join(f"{file} {seconds:.0f} s" for file, seconds in spent.most_common(5))
    return f"time, summed over the processes: {said}; of these {longest}"


@pytest.fixture(scope="module")
def guaranteed_ports() -> Iterator[None]:
    """Let each port of the module's labs be guaranteed bandwidth and a packet rate."""
    operations.REWRITES.append(guaranteed)
    yield
    operations.REWRITES.remove(guaranteed)


@pytest.fixture(autouse=True)
def _planted(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> None:
    """Record what a test plants for the audit to find, and on which hypervisor."""
    for mark in request.node.iter_markers("plants"):
        for kind in mark.args:
            record_property("planted", f"{kind} on {request.getfixturevalue('world').hypervisor}")


@pytest.fixture(scope="module")
def libvirt_folder() -> Iterator[Path]:
    """A folder that the user of root's daemons can enter, with a name that is short enough for sockets."""
    folder = Path(tempfile.mkdtemp(prefix="dw"))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def libvirt_hosts(libvirt_folder: Path) -> Iterator[list[LibvirtHost]]:
    """Two hosts with a libvirtd each."""
    short = libvirt_folder / "s"
    short.mkdir(mode=0o711)
    hosts = [LibvirtHost(name, libvirt_folder / "hosts" / name, short) for name in ("host1", "host2")]
    try:
        start_hosts(hosts)
        yield hosts
    finally:
        for host in hosts:
            host.stop()


@pytest.fixture
def rig(libvirt_folder: Path, libvirt_hosts: list[LibvirtHost]) -> Iterator[LibvirtRig]:
    """Both hosts' hypervisors, with an empty directory for each test."""
    made = LibvirtRig(libvirt_folder, libvirt_hosts)
    yield made
    for opened in made.opened:
        opened.close()
    for host in libvirt_hosts:
        shutil.rmtree(host.root / "instances", ignore_errors=True)


@pytest.fixture(scope="module", name="zookeeper")
def fixture_zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zookeeper_server.Server]:
    """The file's own ZooKeeper."""
    with zookeeper_server.running_server(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """The file's own certificate authority."""
    return Authority(tmp_path_factory.mktemp("pki"))


@pytest.fixture(scope="module")
def protected_zookeeper(
    tmp_path_factory: pytest.TempPathFactory, authority: Authority
) -> Iterator[zookeeper_server.Server]:
    """The same behind TLS, with a certificate of `authority`."""
    folder = tmp_path_factory.mktemp("zookeeper")
    with zookeeper_server.running_server(folder, authority.issue("zookeeper")) as server:
        yield server


@pytest.fixture(scope="module", name="cloud")
def fixture_cloud() -> Cloud:
    """The cloud of `rest`; a file that needs another one says so by a fixture of this name."""
    return small_cloud("host1", "host2", "host3")


@pytest.fixture(scope="module", name="rest")
def fixture_rest(tmp_path_factory: pytest.TempPathFactory, cloud: Cloud) -> Iterator[snapshot.Snapshot]:
    """A lab, built once and put back for each test."""
    folder = tmp_path_factory.mktemp("rest")
    in_child(lambda: build.create(folder / "lab", cloud).close())
    yield snapshot.take(folder / "lab", folder / "kept")
    build.destroy(folder / "lab")


@pytest.fixture(name="site")
def fixture_site(
    request: pytest.FixtureRequest, rest: snapshot.Snapshot, zookeeper: zookeeper_server.Server, tmp_path: Path
) -> Iterator[Installation]:
    """An installation over the lab's databases as they are, or on the server that the test is parametrized with."""
    servers = {"postgresql": postgres_server, "mariadb": mariadb_server}
    kind = getattr(request, "param", "sqlite")
    lab = rest.restore()
    with contextlib.ExitStack() as stack:
        server = None if kind == "sqlite" else stack.enter_context(servers[kind].running_server())
        site = stack.enter_context(installation(lab, tmp_path, zookeeper.hosts, server))
        yield site
    for daemon in site.daemons:
        # Shown where a test failed, which is where it is wanted.
        sys.stdout.write(f"{daemon.name}:\n{daemon.text()}\n")
    lab.close()
