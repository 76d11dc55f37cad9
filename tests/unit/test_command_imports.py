"""Which libraries each of the commands that people wait for may import; `tools/bench cli` measures what they cost."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from droveway.cli import main
from droveway.lab import build, cloud, served_cloud
from droveway.lab.serve_settings import in_place, settings_of, write
from droveway.lab.session import Lab
from droveway.persistence.journal import moves

SLOW = {
    "alembic", "cryptography", "jsonschema", "kazoo", "keystoneauth1", "openstack", "oslo_config", "oslo_log",
    "oslo_policy", "placement", "prettytable", "psutil", "requests", "rich", "sqlalchemy", "taskflow", "tenacity",
    "yaml", "zake",
}  # fmt: skip
"""The libraries whose import a person notices."""

NOTHING: set[str] = set()
DATABASES = {"sqlalchemy"}
SERVICES = DATABASES | {"oslo_config", "oslo_log", "keystoneauth1", "requests", "tenacity"}
"""What an installation's configuration, databases and services take."""

READING = {
    "--help": NOTHING,
    "explain disk-full": NOTHING,
    "move list": DATABASES,
    "move show {move}": DATABASES,
    "move history {move}": DATABASES,
    "server list": DATABASES,
    "host list": DATABASES,
    "flavor list": DATABASES,
}
"""Commands of a lab, whose configuration is only read where an option is asked for."""

ASKING = {
    "move create one": SERVICES,
    "server migrate two": SERVICES,
    "server resize three --flavor large": SERVICES,
}
"""Commands of an installation."""

CLOUD = """
cells: {cell1: {hosts: {host1: {}, host2: {}}}}
flavors: {small: {vcpus: 1, memory_mb: 256, root_gb: 1}, large: {vcpus: 2, memory_mb: 256, root_gb: 1}}
images: {base: {size_mb: 1}}
servers:
  web: {flavor: small, host: host1, image: base, ports: [{}]}
  one: {flavor: small, host: host1, image: base, ports: [{}]}
  two: {flavor: small, host: host1, image: base, ports: [{}]}
  three: {flavor: small, host: host1, image: base, ports: [{}]}
"""
PROGRAM = """
import sys
from droveway.cli.main import main
code = main(sys.argv[1:])
print(*sys.modules, file=sys.stderr)
sys.exit(code)
"""


class Site(NamedTuple):
    """A lab in which a move waits for its confirm, and an installation with the lab's databases and services."""

    lab: Path
    move: str
    configuration: Path


@pytest.fixture(name="site", scope="module")
def fixture_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    root, configuration = folder / "lab", folder / "droveway.conf"
    build.create(root, cloud.parse_cloud(CLOUD, "test")).close()
    try:
        assert main.main(["--lab", str(root), "server", "migrate", "web"]) == 0
        lab = Lab.open(root)
        with served_cloud.served(lab.layout) as services:
            write(settings_of(lab, "127.0.0.1:1", in_place(lab), services.server_port, folder / "run"), configuration)
            with lab.journal.read() as session:
                move = moves.open_moves(session)[0].id
            lab.close()
            yield Site(root, move, configuration)
    finally:
        build.destroy(root)


def imported(*words: str) -> set[str]:
    """The slow libraries that a command has imported by its end, which is a good one."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {module.partition(".")[0] for module in done.stderr.splitlines()[-1].split()} & SLOW


@pytest.mark.parametrize("command", READING)
def test_a_command_that_reads_a_lab_imports_no_library_that_it_does_not_use(site: Site, command: str) -> None:
    words = command.format(move=site.move).split()
    assert imported("--lab", str(site.lab), *words) == READING[command]


@pytest.mark.parametrize("command", ASKING)
def test_a_command_that_asks_for_a_move_imports_no_library_that_it_does_not_use(site: Site, command: str) -> None:
    assert imported(*command.split(), "--config-file", str(site.configuration)) == ASKING[command]


@pytest.mark.parametrize("library", sorted(SLOW))
def test_a_library_that_counts_as_slow_is_one_that_is_installed(library: str) -> None:
    assert importlib.util.find_spec(library) is not None
