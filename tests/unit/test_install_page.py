"""docs/install.rst: its commands name what the wheel installs, and its files are ones that daemons take."""

from __future__ import annotations

import configparser
import re
import subprocess
from pathlib import Path
from typing import Final

import pytest
from proofs.install_trial.page import PAGE, Block, blocks

from droveway.clients import sessions
from droveway.conf import rights, settings

ROOT: Final = Path(__file__).parents[2]
BLOCKS: Final = blocks(PAGE.read_text(encoding="utf-8"))


def configuration(machine: str, path: Path) -> Path:
    """Write the configuration that the page has for a machine."""
    (text,) = [
        block.text for block in BLOCKS if block.machines == (machine,) and "> /etc/droveway/droveway.conf" in block.text
    ]
    path.write_text(text.partition("<<'END'\n")[2].partition("\nEND\n")[0])
    return path


def installed() -> set[str]:
    """Every path below the environment to which pip installs a file beside the package."""
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg", encoding="utf-8")
    return {
        f"{folder}/{path.name}"
        for folder, files in parser["options.data_files"].items()
        for pattern in files.split()
        for path in ROOT.glob(pattern)
    }


def test_every_block_of_commands_says_which_machine_it_is_for() -> None:
    assert {machine for block in BLOCKS for machine in block.machines} == {"conductor", "host", "zookeeper", "database"}
    with pytest.raises(ValueError, match="line 3: say above the block which machine it is for"):
        blocks(".. code-block:: sh\n\n   true\n")


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: f"line {block.line}")
def test_a_shell_can_read_each_block(block: Block) -> None:
    subprocess.run(["bash", "-n"], input=block.text, text=True, check=True)


def test_each_file_that_the_commands_take_from_the_environment_is_installed_there() -> None:
    named = {path for block in BLOCKS for path in re.findall(r"/opt/droveway/(share/[^\s;]+)", block.text)}
    assert len(named) >= 5
    there = installed()
    missing = [name for name in named if not any(Path(path).match(name) for path in there)]
    assert missing == []


def test_each_file_of_sql_that_the_commands_run_is_installed() -> None:
    named = {path for block in BLOCKS for path in re.findall(r"/srv/droveway/sql/([^\s;]+)", block.text)}
    assert {f"share/droveway/sql/{name}" for name in named} <= installed()
    assert {Path(name).name for name in named} == {path.name for path in (ROOT / "etc/sql/mariadb").iterdir()}


def test_units_start_the_command_that_the_page_installs() -> None:
    assert any("python3 -m venv /opt/droveway\n" in block.text for block in BLOCKS)
    for unit in (ROOT / "etc/systemd").iterdir():
        assert "\nExecStart=/opt/droveway/bin/droveway " in unit.read_text()


def test_a_conductor_takes_the_page_s_configuration(tmp_path: Path) -> None:
    conf = settings.load_deployment(configuration("conductor", tmp_path / "droveway.conf"))
    assert conf.journal.connection.startswith("mysql+pymysql://droveway:")
    for group in ("placement", "neutron", "cinder", "glance"):
        assert sessions.connect(conf, group)


def test_a_worker_takes_the_page_s_configuration_which_has_no_database(tmp_path: Path) -> None:
    path = configuration("host", tmp_path / "droveway.conf")
    conf = settings.load_deployment(path)
    assert sessions.connect(conf, "cinder")
    assert conf.worker.transfer_listen == "0.0.0.0:4790"
    groups = configparser.ConfigParser(interpolation=None)
    groups.read(path)
    assert set(groups.sections()) & {*rights.DATABASES, "placement", "neutron"} == set()
    assert "database" not in path.read_text()
