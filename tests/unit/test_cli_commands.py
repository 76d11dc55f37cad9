from __future__ import annotations

import contextlib
import csv
import errno
import io
import json
import os
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from droveway.cli import base, main
from droveway.cli.registry import COMMANDS
from droveway.lab import build, cloud
from droveway.persistence.journal import migrate

CLOUD = """
cells:
  cell1: {hosts: {host1: {}, host2: {}, host3: {enabled: false}, tiny: {memory_mb: 256}}}
  cell2: {hosts: {other: {}}}
flavors:
  small: {vcpus: 1, memory_mb: 512, root_gb: 2}
  large: {vcpus: 2, memory_mb: 1024, root_gb: 4}
  shrunk: {vcpus: 2, memory_mb: 1024, root_gb: 1}
  huge: {vcpus: 10, memory_mb: 8192, root_gb: 2}
  bare: {vcpus: 1, memory_mb: 512, root_gb: 2, ephemeral_gb: 1}
images: {base: {size_mb: 1}}
servers:
  web: {flavor: small, host: host1, image: base, ports: [{}]}
  idle: {flavor: small, host: host1, image: base, state: stopped}
  eph: {flavor: bare, host: host1, image: base, state: stopped}
"""


HUGE = "9" * 20
"""No database, file or clock has room for it."""
NEW = ("lab", "server", "create", "new", "--flavor", "small", "--host", "host1")


class Asked(io.StringIO):
    """A person at a terminal, who types this."""

    def isatty(self) -> bool:
        return True


class Cli:
    """Runs commands in this process, against one lab."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.root = root
        self._capsys = capsys

    def __call__(self, *words: str, code: int = 0) -> str:
        """Standard output; the exit code is asserted."""
        self._capsys.readouterr()
        try:
            ended = main.main(["--lab", str(self.root), *words])
        except SystemExit as stop:
            ended = int(stop.code or 0)
        out, self.error = self._capsys.readouterr()
        assert ended == code, (out, self.error)
        return out

    def refused(self, *words: str) -> str:
        """The one sentence with which a command is refused."""
        self(*words, code=2)
        assert self.error.startswith("droveway: ")
        assert self.error.count("\n") == 1
        return self.error


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("labs") / "lab"
    build.create(path, cloud.parse_cloud(CLOUD, "test")).close()
    yield path
    build.destroy(path)


@pytest.fixture
def cli(root: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(root, capsys)


def test_every_command_of_the_table_can_be_loaded_and_has_help(cli: Cli) -> None:
    for name in COMMANDS:
        shown = cli(*name.split(), "--help")
        assert shown.startswith(f"usage: droveway {name}")
        assert "--lab" in shown


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["--help"]) == 0
    out = capsys.readouterr().out
    assert [name for name in COMMANDS if f"  {name} " not in out] == []


def test_servers_have_novas_names_in_every_format(cli: Cli) -> None:
    columns = ["id", "name", "status", "vm_state", "task_state", "power_state", "host", "flavor", "cell"]
    rows = json.loads(cli("server", "list", "-f", "json"))
    assert [list(row) for row in rows] == [columns] * 3
    assert [(row["name"], row["status"], row["task_state"]) for row in rows] == [
        ("eph", "SHUTOFF", None),
        ("idle", "SHUTOFF", None),
        ("web", "ACTIVE", None),
    ]
    assert yaml.safe_load(cli("server", "list", "-f", "yaml")) == rows
    assert [row[0] for row in csv.reader(io.StringIO(cli("server", "list", "-f", "csv")))][1:] == [
        row["id"] for row in rows
    ]
    assert cli("server", "list", "-f", "value", "-c", "name").split() == ["eph", "idle", "web"]
    assert rows[2]["id"][:8] in cli("server", "list")
    assert rows[2]["id"] not in cli("server", "list")


def test_the_lab_may_be_named_before_or_after_the_noun_or_in_the_environment(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["cell", "list", "-f", "value", "-c", "name"]
    outputs = []
    for argv in (["--lab", str(root), *words], [*words, "--lab", str(root)]):
        assert main.main(argv) == 0
        outputs.append(capsys.readouterr().out)
    monkeypatch.setenv("DROVEWAY_LAB", str(root))
    assert main.main(words) == 0
    assert [*outputs, capsys.readouterr().out] == ["cell1\ncell2\n"] * 3


def test_a_server_is_found_by_name_id_and_first_letters(cli: Cli) -> None:
    server = json.loads(cli("server", "show", "web", "-f", "json"))
    assert json.loads(cli("server", "show", server["id"], "-f", "json")) == server
    assert json.loads(cli("server", "show", server["id"][:8], "-f", "json")) == server
    assert len(server["ports"]) == 1


def test_the_other_nouns_answer(cli: Cli) -> None:
    hosts = {row["name"]: row for row in json.loads(cli("host", "list", "-f", "json"))}
    assert (hosts["host1"]["servers"], hosts["host1"]["status"], hosts["host3"]["status"]) == (3, "enabled", "disabled")
    assert "web" in cli("host", "show", "host1")
    assert json.loads(cli("cell", "show", "cell1", "-f", "json"))["host_names"] == ["host1", "host2", "host3", "tiny"]
    assert cli("flavor", "list", "--min-disk", "4", "-f", "value", "-c", "name").split() == ["large"]
    assert json.loads(cli("flavor", "show", "large", "-f", "json"))["memory_mb"] == 1024
    assert json.loads(cli("lab", "show", "-f", "json"))["servers"] == 3
    assert cli("move", "list", "-f", "json").strip() == "[]"
    assert cli("db", "sync").startswith(f"journal: schema {migrate.HEAD}")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("move", "list"), "no moves"),
        (("move", "list", "--stuck"), "no move is stuck"),
        (("server", "list", "--host", "other"), "no servers"),
        (("debt", "list"), "no debts"),
        (("lab", "fault", "list"), "no lab faults"),
        (("flavor", "list", "--min-disk", "999"), "no flavors"),
        (("db", "check"), "nothing was found: the databases hold what they should"),
    ],
)
def test_a_table_without_a_row_says_so_and_other_formats_are_empty(cli: Cli, words: tuple[str, ...], said: str) -> None:
    header = cli(*words)
    assert (header.count("\n"), cli.error) == (1, f"{said}\n")
    assert {name: (cli(*words, "-f", name), cli.error) for name in ("value", "json", "yaml")} == {
        "value": ("", ""),
        "json": ("[]\n", ""),
        "yaml": ("[]\n", ""),
    }
    assert cli(*words, "-f", "csv").replace('"', "").replace(",", " ").split() == header.split()
    assert cli.error == ""


def test_a_list_with_rows_says_nothing_beside_them(cli: Cli) -> None:
    assert cli("server", "list")
    assert cli.error == ""


def test_a_command_that_did_its_work_says_what_is_now_so(cli: Cli) -> None:
    asked = (("host", "disable", "host2"), ("host", "enable", "host2"))
    asked += (("lab", "worker", "stop", "host2"), ("host", "down", "host2", "--i-made-sure", "it is off"))
    asked += (("lab", "worker", "start", "host2"), ("host", "enable", "host2"))
    asked += (("lab", "server", "start", "idle"), ("lab", "server", "stop", "idle"))
    off = "host host2 is declared to be off and takes no servers; to write off what it owes: droveway host forget host2"
    said = [cli(*words) for words in asked]
    assert said == [
        "host host2 is disabled: it takes no more servers, those on it stay\n",
        "host host2 is enabled: it takes servers again\n",
        "the worker of host host2 is away until  droveway lab worker start host2\n",
        f"{off}\n",
        "the worker of host host2 is back: the next command starts it\n",
        "host host2 is enabled: it takes servers again\n",
        "server idle runs\n",
        "server idle is off\n",
    ]


def test_the_width_of_a_table_is_set_by_options_or_by_what_cliff_reads_of_the_environment(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def height(*words: str) -> int:
        return cli("explain", "-c", "code", "-c", "means", *words).count("\n")

    unwrapped, wrapped = height(), height("--max-width", "60")
    monkeypatch.setenv("COLUMNS", "60")
    assert height() == unwrapped < wrapped == height("--fit-width")
    monkeypatch.setenv("CLIFF_FIT_WIDTH", "1")
    assert height() == wrapped
    monkeypatch.setenv("CLIFF_MAX_TERM_WIDTH", "500")
    assert height() == height("--max-width", "0") == unwrapped
    assert height("--max-width", "60") == wrapped
    monkeypatch.setenv("CLIFF_MAX_TERM_WIDTH", "wide")
    cli("server", "list", code=2)
    assert "argument --max-width: wide is no number of columns" in cli.error


def test_a_list_fits_a_narrow_terminal_and_says_which_columns_it_leaves_out(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "64")
    shown = cli("server", "list", "--fit-width")
    assert max(map(len, shown.splitlines())) <= 64
    named = "power_state, task_state"
    said = f"left out to fit 64 columns: {named}; -c shows a column that it names, --max-width 0 shows all\n"
    assert cli.error == said
    assert shown.split()[:7] == ["id", "name", "status", "vm_state", "host", "flavor", "cell"]
    assert "task_state" in cli("server", "list", "--fit-width", "-c", "id", "-c", "task_state")
    assert cli.error == ""
    assert "power_state" in cli("server", "list", "--fit-width", "-f", "csv")
    assert cli.error == ""


def test_a_host_is_disabled_and_enabled(cli: Cli) -> None:
    cli("host", "disable", "host2", "--reason", "new disk")
    shown = json.loads(cli("host", "show", "host2", "-f", "json"))
    assert (shown["status"], shown["disabled_reason"]) == ("disabled", "new disk")
    assert "host host2 is disabled (new disk)" in cli.refused("server", "migrate", "web", "--host", "host2")
    cli("host", "enable", "host2")
    assert json.loads(cli("host", "show", "host2", "-f", "json"))["status"] == "enabled"


def test_a_stopped_worker_makes_its_host_down(cli: Cli) -> None:
    cli("lab", "worker", "stop", "host2")
    assert json.loads(cli("host", "show", "host2", "-f", "json"))["state"] == "down"
    assert "host host2 is down" in cli.refused("move", "create", "web", "--to-host", "host2")
    cli("lab", "worker", "start", "host2")
    cli("lab", "worker", "stop", "host1")
    assert "host host1, which server web is on, is down" in cli.refused("move", "create", "web")
    cli("lab", "worker", "start", "host1")
    assert json.loads(cli("host", "show", "host1", "-f", "json"))["state"] == "up"


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("server", "show", "none"), "server none is unknown"),
        (("host", "show", "none"), "host none is unknown"),
        (("cell", "show", "none"), "cell none is unknown"),
        (("flavor", "show", "none"), "flavor none is unknown"),
        (("move", "show", "none"), "no move's id begins with none"),
        (("move", "list", "--state", "moving"), "there is no state moving: the states are queued"),
        (("move", "list", "--kind", "flight"), "there is no kind flight: the kinds are resize, migrate"),
        (("move", "list", "--server", "none"), "server none is unknown: droveway server list shows the servers"),
        (("move", "list", "--host", "none"), "host none is unknown: droveway host list shows the hosts"),
        (("move", "list", "--cell", "none"), "cell none is unknown: droveway cell list shows the cells"),
        (
            ("move", "list", "--project", "none"),
            "project none is unknown, because it has no server: give its id, which droveway",
        ),
        (("move", "list", "--marker", "none"), "no move's id begins with none: droveway move list shows the moves"),
        (("move", "list", "--since", "1h", "--before", "2h"), "give --since an earlier time"),
        (("server", "list", "-c", "nmae"), "there is no column nmae: choose of id, name"),
        (("server", "migrate", "none"), "server none is unknown"),
        (("server", "resize", "web", "--flavor", "none"), "flavor none is unknown"),
        (("server", "migrate", "web", "--host", "none"), "host none is unknown"),
        (("server", "resize", "web", "--flavor", "small"), "server web has flavor small already"),
        (("server", "resize", "web", "--flavor", "shrunk"), "web would shrink its disk from 2 GB (small) to 1 GB"),
        (("server", "resize", "eph", "--flavor", "large"), "would shrink its ephemeral disk from 1 GB (bare) to 0 GB"),
        (("server", "migrate", "web", "--host", "host1"), "server web is on host host1 already"),
        (("server", "migrate", "web", "--host", "other"), "host other is in cell cell2 and server web in cell cell1"),
        (("server", "migrate", "web", "--host", "host3"), "host host3 is disabled"),
        (("server", "migrate", "web", "--host", "tiny"), "no host can take the server web (tiny: it has no room"),
        (("move", "create", "web", "--flavor", "large", "--to-host", "host2"), "not both"),
        (("move", "create", "web", "--host", "host3"), "host host3 is disabled"),
        (("move", "create", "web", "--from-plan", "p-1"), "no plan begins with p-1"),
        (("server", "confirm", "web"), "server web has no move under way"),
        (("flow", "graph", "none"), "there is no kind of flow none"),
        (("lab", "fault", "arm", "--step", "none", "--phase", "before", "--action", "fail"), "there is no step none"),
        (("lab", "fault", "clear", "7"), "fault 7 is not armed"),
        (("lab", "worker", "stop", "none"), "host none is unknown"),
        (("lab", "server", "create", "web", "--flavor", "small", "--host", "host1", "--image", "base"), "web already"),
        (
            ("lab", "server", "create", "new", "--flavor", "small", "--host", "host1", "--image", "no"),
            "image no is unkn",
        ),
        (
            ("lab", "server", "create", "new", "--flavor", "huge", "--host", "tiny", "--image", "base"),
            "cannot be built",
        ),
    ],
)
def test_bad_input_is_refused_in_one_sentence(cli: Cli, words: tuple[str, ...], named: str) -> None:
    """R0-10, R0-16: refused at submit with no move recorded, a shrinking disk and the present flavor too."""
    assert named in cli.refused(*words)
    assert cli("move", "list", "-f", "json").strip() == "[]"


@pytest.mark.parametrize(
    "words",
    [
        ("server", "resize", "web", "--flavor", "large", "--host", "host2"),
        ("server", "migrate", "web", "--confirm", "never"),
        ("server", "migrate", "web", "--deadline", "soon"),
        ("move", "list", "--limit", "0"),
        ("move", "list", "--limit", "many"),
        ("move", "list", "--limit", "5", "--all"),
        ("move", "list", "--limit", HUGE),
        ("move", "list", "--since", "yesterday"),
        ("move", "list", "--before", "0001-01-01T00:00+01:00"),
        (*NEW, "--image", "base", "--volume", HUGE),
        (*NEW, "--image", "base", "--volume", "-1"),
        (*NEW, "--boot-volume", "0"),
        ("server", "fly"),
        ("sever", "list"),
        ("server",),
    ],
)
def test_bad_usage_ends_with_2(cli: Cli, words: tuple[str, ...]) -> None:
    """R0-15: a resize to a named host is among it."""
    cli(*words, code=2)


def test_a_move_that_a_killed_stop_is_in_the_way_of_says_what_ends_it(cli: Cli, root: Path) -> None:
    for killed, verb in (("powering-off", "stop"), ("powering-on", "start")):
        with contextlib.closing(sqlite3.connect(root / "cells/cell1.sqlite")) as cell, cell:
            cell.execute("UPDATE instances SET task_state = ? WHERE display_name = 'web'", (killed,))
        refused = cli.refused("server", "migrate", "web")
        assert f"wait for its task or end it (in a lab: droveway lab server {verb} web), then try again" in refused
        cli("lab", "server", verb, "web")
        assert json.loads(cli("server", "show", "web", "-f", "json"))["task_state"] is None


def test_a_name_without_moves_narrows_the_list_to_nothing(cli: Cli) -> None:
    server = json.loads(cli("server", "show", "web", "-f", "json"))
    cell = json.loads(cli("cell", "show", "cell2", "-f", "json"))
    for option, name in (
        *(("--server", "web"), ("--server", server["id"][:8]), ("--project", server["project"])),
        *(("--host", "other"), ("--cell", "cell2"), ("--cell", cell["id"]), ("--since", "2d"), ("--before", "1d")),
    ):
        assert cli("move", "list", option, name, "-f", "json").strip() == "[]"


def test_a_cell_is_named_by_its_id_too(cli: Cli) -> None:
    for name, servers in (("cell1", ["eph", "idle", "web"]), ("cell2", [])):
        cell = json.loads(cli("cell", "show", name, "-f", "json"))
        for named in (name, cell["id"]):
            shown = json.loads(cli("server", "list", "--cell", named, "-f", "json"))
            assert [each["name"] for each in shown] == servers


def test_a_server_whose_allocation_is_gone_is_refused_with_the_audit_named(cli: Cli, root: Path) -> None:
    """R1-23: nothing is moved whose books are wrong."""
    from droveway.lab.session import Lab
    from droveway.persistence.nova import catalog

    lab = Lab.open(root)
    server = catalog.find_server(lab.api, lab.cell_databases, "idle").id
    held = lab.cloud.placement.allocations(server)
    lab.cloud.placement.release(server)
    assert "droveway audit" in cli.refused("server", "migrate", "idle")
    cli("audit", code=3)
    lab.cloud.placement.ensure_allocation(
        server, held.allocations, project_id=lab.identity.project, user_id=lab.identity.user
    )
    lab.close()
    cli("audit")


def test_no_lab_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main.main(["server", "list"]) == 2
    assert capsys.readouterr().err == (
        "droveway: this command is for a lab or an installation, and none is named: give --lab DIR (or set "
        "DROVEWAY_LAB) for a lab, "
        "--config-file FILE (or set DROVEWAY_CONFIG_FILE) for an installation, or write /etc/droveway/droveway.conf\n"
    )
    assert main.main(["server", "list", "--lab", str(tmp_path)]) == 2
    assert "is no lab" in capsys.readouterr().err


def test_an_installation_that_is_named_is_no_lab(
    root: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By --config-file, or where nothing else is named by its own configuration, which is there."""
    conf = tmp_path / "droveway.conf"
    conf.touch()
    monkeypatch.setattr(base, "CONFIGURATION", conf)
    for words in (["move", "resume"], ["lab", "fault", "list"]):
        assert main.main(words) == 2
        assert "for a lab, and an installation is named" in capsys.readouterr().err
    monkeypatch.setenv("DROVEWAY_LAB", str(root))
    assert main.main(["move", "resume"]) == 0
    for words in (["move", "resume"], ["lab", "fault", "list"]):
        assert main.main([*words, "--config-file", str(conf)]) == 2
        assert "for a lab, and an installation is named" in capsys.readouterr().err
    monkeypatch.setenv("DROVEWAY_CONFIG_FILE", str(conf))
    assert main.main(["lab", "fault", "list"]) == 0
    assert main.main(["move", "resume"]) == 2
    assert "name the MOVE that is held" in capsys.readouterr().err


def test_a_plan_counts_ports_and_volumes_and_tells_for_how_long_the_guest_is_off(cli: Cli) -> None:
    plan = json.loads(cli("move", "plan", "web", "-f", "json"))
    details = {check["check"]: check["detail"] for check in plan["checks"]}
    assert (details["ports"], details["volumes"]) == ("1 port to bind on host2", "0 volumes to attach to host2")
    off = plan["downtime"]
    assert (off["bytes"], off["rate_moves"], off["pause_moves"]) == (plan["bytes"], 0, 0)
    page = cli("move", "plan", "web")
    assert f"downtime     about {off['seconds']:.0f} s\n" in page
    assert "the default of [conductor] plan_rate" in page
    assert cli("move", "plan", "web", "-c", "downtime").startswith("downtime  about ")


@pytest.mark.parametrize(
    ("words", "near"),
    [
        (("servr", "list"), "; did you mean: server list?"),
        (("movee", "lst"), "; did you mean: move list, "),
        (("sever",), "; did you mean: server?"),
        (("frobnicate", "all"), "; droveway --help lists the commands"),
    ],
)
def test_a_misspelt_command_is_told_those_like_it_best_first(cli: Cli, words: tuple[str, ...], near: str) -> None:
    assert f"there is no command {' '.join(words)}{near}" in cli.refused(*words)


@pytest.mark.parametrize("words", [("doctor",), ("upgrade", "check"), ("conductor", "list"), ("conductor", "run")])
def test_what_only_an_installation_has_is_refused_in_a_lab_with_the_command_that_makes_one(
    cli: Cli, words: tuple[str, ...]
) -> None:
    assert "droveway lab serve" in cli.refused(*words)


@pytest.mark.parametrize(
    ("number", "mend"),
    [
        (errno.EACCES, "give the user who runs this command access to it"),
        (errno.ENOSPC, "make room on its file system"),
        (errno.EROFS, "mount its file system writable"),
    ],
)
def test_a_file_that_cannot_be_used_is_told_with_the_mend_of_its_own_cause(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, number: int, mend: str
) -> None:
    from droveway.persistence.nova import catalog

    def fail(*_arguments: object) -> None:
        raise OSError(number, os.strerror(number), "/srv/lab.json")

    monkeypatch.setattr(catalog, "flavors", fail)
    said = f"droveway: /srv/lab.json cannot be used ({os.strerror(number)}): {mend}\n"
    assert cli.refused("flavor", "list") == said


def test_an_error_inside_is_one_sentence_and_a_traceback_in_the_log(
    cli: Cli, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from droveway.persistence.nova import catalog

    def fail(*_arguments: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(catalog, "flavors", fail)
    cli("flavor", "list", code=1)
    assert cli.error == f"droveway: flavor list met RuntimeError inside; the traceback is in {root}/droveway.log\n"
    assert "RuntimeError: broken" in (root / "droveway.log").read_text()


def test_the_traceback_is_in_the_log_of_the_lab_however_it_is_named(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from droveway.persistence.nova import catalog

    def fail(*_arguments: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(catalog, "flavors", fail)
    for before, after in (
        (("--lab", str(root)), ()),
        ((f"--lab={root}",), ()),
        ((), ("--lab", str(root))),
        ((), (f"--lab={root}",)),
    ):
        assert main.main([*before, "flavor", "list", *after]) == 1
        assert capsys.readouterr().err.endswith(f"the traceback is in {root}/droveway.log\n"), (before, after)


def test_the_traceback_of_an_installation_s_command_goes_into_no_lab_s_log(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from droveway.conf import settings

    def fail(*_arguments: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(settings, "load_deployment", fail)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("DROVEWAY_LAB", str(root))
    for given in (["--config-file", "x.conf"], ["--config-file=x.conf"], ["--config", "x.conf"]):
        assert main.main(["flavor", "list", *given]) == 1
        assert f"the traceback is in {tmp_path}/droveway-" in capsys.readouterr().err, given
    monkeypatch.setenv("DROVEWAY_CONFIG_FILE", "/dev/null")
    assert main.main(["flavor", "list"]) == 1
    assert f"the traceback is in {tmp_path}/droveway-" in capsys.readouterr().err


def test_a_debt_that_a_heal_makes_due_again_is_no_finding(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from droveway.audit.findings import Finding, Kind, Report
    from droveway.audit.heal import mending
    from droveway.audit.heal.healing import Mend

    found, owed = (Finding(kind, kind, "d", "m", "host1") for kind in (Kind.DISK, Kind.HOST))
    first = mending.Healing(Report((found,), (), {}), [Mend(finding=found, why="no"), Mend(finding=owed, does="undo")])
    plans = iter([first, first, mending.Healing(Report((found,), (), {}), [Mend(finding=found, why="no")])])
    monkeypatch.setattr(mending, "plan", lambda *_: next(plans))
    monkeypatch.setattr(mending, "heal", lambda *_, **__: iter(()))
    monkeypatch.setattr(sys, "stdin", Asked("no\n"))
    cli("audit", "--heal", code=3)
    assert "Droveway can mend 1 of 1 finding and 1 debt that was written off." in cli.error
    cli("audit", "--heal", "--yes", code=3)
    assert "1 finding before, 1 after" in cli.error


@pytest.fixture
def copy(root: Path, tmp_path: Path) -> Path:
    """The lab's records alone, to be damaged."""
    kept = tmp_path / "copy"
    kept.mkdir()
    for name in ("lab.json", "api.sqlite", "journal.sqlite"):
        shutil.copy(root / name, kept / name)
    shutil.copytree(root / "cells", kept / "cells")
    return kept


@pytest.mark.parametrize(
    ("words", "file"),
    [
        (("move", "list"), "journal.sqlite"),
        (("server", "list"), "api.sqlite"),
        (("server", "list"), "cells/cell1.sqlite"),
    ],
)
@pytest.mark.parametrize("harm", ["gone", "empty", "garbage"])
def test_a_damaged_lab_is_refused_and_left_as_it_is(
    copy: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], file: str, harm: str
) -> None:
    path = copy / file
    path.unlink()
    if harm != "gone":
        path.write_bytes(b"" if harm == "empty" else b"garbage " * 1000)
    assert main.main(["--lab", str(copy), *words]) == 2
    error = capsys.readouterr().err
    assert error.startswith("droveway: ")
    assert (error.count("\n"), "restore it" in error or "db sync" in error) == (1, True)
    assert path.exists() == (harm != "gone")


def test_a_lab_of_which_nothing_may_be_written_is_refused(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if os.geteuid() == 0:
        # Root may write everywhere, save where nobody can: a file's directory that is a file.
        (copy / "lab.json").rename(copy / "was")
        assert main.main(["--lab", str(copy / "was"), "server", "list"]) == 2
    else:
        copy.chmod(0o500)
        assert main.main(["--lab", str(copy), "host", "disable", "host1"]) == 2
        copy.chmod(0o700)
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("text", ["nan", "inf", "-1", "1e30", "soon"])
def test_a_time_to_wait_is_one_that_ends(cli: Cli, text: str) -> None:
    cli("move", "wait", "none", "--timeout", text, code=2)
    assert f"argument --timeout: {text} is no number of seconds: give 0 to 31536000" in cli.error


@pytest.mark.parametrize("kind", ["resize", "migrate", "confirm", "revert"])
def test_a_graph_is_text_with_one_point_of_no_return(cli: Cli, kind: str) -> None:
    lines = [line.split("\t") for line in cli("flow", "graph", kind, "-f", "text").splitlines()]
    assert {len(line) for line in lines} <= {3, 4}
    assert [line[3] for line in lines if len(line) == 4] == ["PONR"]
    assert cli("flow", "graph", kind, "-f", "mermaid").startswith("flowchart")
    assert cli("flow", "graph", kind, "-f", "dot").startswith("digraph")
