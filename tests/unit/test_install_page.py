"""The pages that the trial follows: commands name what the wheel installs, and files are ones that daemons take."""

from __future__ import annotations

import configparser
import re
import subprocess
from pathlib import Path
from typing import Final

import pytest
from proofs.install_trial.page import ENSEMBLE, MACHINES, PAGE, Block, blocks

from droveway.clients import sessions
from droveway.conf import rights, settings

ROOT: Final = Path(__file__).parents[2]
BLOCKS: Final = blocks(PAGE.read_text(encoding="utf-8"))
OF_ENSEMBLE: Final = blocks(ENSEMBLE.read_text(encoding="utf-8"))


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
    assert {machine for block in (*BLOCKS, *OF_ENSEMBLE) for machine in block.machines} == {*MACHINES}
    with pytest.raises(ValueError, match="line 3: say above the block which machine it is for"):
        blocks(".. code-block:: sh\n\n   true\n")


def test_each_zookeeper_server_is_told_of_all_three_and_so_is_each_daemon() -> None:
    machines = {block.machines: block.text for block in (*BLOCKS, *OF_ENSEMBLE) if "myid" in block.text}
    assert {text.split("echo ")[1][0]: names for names, text in machines.items()} == {
        "1": ("zookeeper",),
        "2": ("zk2",),
        "3": ("zk3",),
    }
    (daemons,) = (block for block in OF_ENSEMBLE if "sed -i" in block.text)
    assert set(daemons.machines) == {"conductor", "host"}
    script = daemons.text.split("'")[1]
    for machine in daemons.machines:
        (written,) = (each.text for each in BLOCKS if each.machines == (machine,) and "[zookeeper]" in each.text)
        changed = subprocess.run(["sed", script], input=written, capture_output=True, text=True, check=True).stdout
        assert "hosts = zk1.example:2281,zk2.example:2281,zk3.example:2281\n" in changed


@pytest.mark.parametrize("block", [*BLOCKS, *OF_ENSEMBLE], ids=lambda block: f"{block.section}, line {block.line}")
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


def test_zookeeper_keeps_its_data_over_a_restart_of_the_machine() -> None:
    debian_s = "tickTime=2000\ndataDir=/tmp/zookeeper\nclientPort=2181\n"
    (block,) = (block for block in BLOCKS if block.machines == ("zookeeper",))
    (script,) = (line.split("'")[1] for line in block.text.splitlines() if line.startswith("sed -i"))
    kept = subprocess.run(["sed", script], input=debian_s, capture_output=True, text=True, check=True).stdout
    assert kept == "tickTime=2000\ndataDir=/var/lib/zookeeper\n"
