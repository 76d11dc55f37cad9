"""Nothing that came from a row or a host is obeyed by a terminal, or looks like another line: S6."""

from __future__ import annotations

import argparse
import io
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from droveway.cli import main
from droveway.cli.view.columns import Blank, Facts, Joined
from droveway.cli.view.plain import Csv, Value
from droveway.cli.view.tables import TableFormatter
from droveway.printable import printable

HOSTILE = "web\x1b]0;pwn\x07\x1b[2J\nweb2\r\x9b1m\u202eevil"
SHOWN = "web\\x1b]0;pwn\\x07\\x1b[2J\\x0aweb2\\x0d\\x9b1m\\u202eevil"
SETTINGS = argparse.Namespace(quote_mode="minimal", max_width=None, fit_width=False, spare=())


def test_what_is_obeyed_is_escaped_and_all_else_stays() -> None:
    assert printable(HOSTILE) == SHOWN
    assert printable("Müller → 東京 ✓ 10 %") == "Müller → 東京 ✓ 10 %"


@pytest.mark.parametrize("value", [HOSTILE, Blank(HOSTILE), Joined([HOSTILE]), Facts({"a": HOSTILE})])
@pytest.mark.parametrize("formatter", [TableFormatter, Value, Csv])
def test_a_list_has_one_line_a_row(formatter: Any, value: Any) -> None:
    out = io.StringIO()
    formatter().emit_list(("name",), [(value,)], out, SETTINGS)
    lines = out.getvalue().removeprefix("name\n")
    if formatter is TableFormatter or (formatter is Value and isinstance(value, (str, Blank))):
        assert SHOWN in lines
    assert "\x1b" not in lines
    assert lines.count("\n") == 1


@pytest.mark.parametrize("formatter", [TableFormatter, Value])
def test_a_record_has_one_line_a_field(formatter: Any) -> None:
    out = io.StringIO()
    formatter().emit_one(("name",), [HOSTILE], out, SETTINGS)
    assert out.getvalue().endswith(f"{SHOWN}\n")


def test_a_column_may_have_lines_of_its_own() -> None:
    out = io.StringIO()
    TableFormatter().emit_list(("name",), [(Joined(["a", "b"]),)], out, SETTINGS)
    assert out.getvalue() == "name\na\nb\n"


def fail(*_arguments: object) -> None:
    raise RuntimeError("broken")


def test_a_traceback_goes_where_nobody_else_could_have_put_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """S5, S9: a link in the directory for temporary files leads to a file of somebody's choice."""
    monkeypatch.setattr(main.tempfile, "tempdir", str(tmp_path))
    (tmp_path / "droveway.log").symlink_to(tmp_path / "victim")
    monkeypatch.setattr("droveway.cli.commands.explain.Explain.take_action", fail, raising=False)
    assert main.main(["explain"]) == 1
    assert not (tmp_path / "victim").exists()
    (kept,) = tmp_path.glob("droveway-*.log")
    assert str(kept) in capsys.readouterr().err
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert "RuntimeError: broken" in kept.read_text()


@pytest.mark.parametrize("planted", ["link", "fifo"])
def test_a_lab_whose_log_is_no_file_gets_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], planted: str
) -> None:
    (tmp_path / "lab.json").touch()
    log = tmp_path / "droveway.log"
    if planted == "link":
        log.symlink_to(tmp_path / "victim")
    else:
        os.mkfifo(log)
    monkeypatch.setattr("droveway.lab.session.Lab.open", fail)
    assert main.main(["--lab", str(tmp_path), "lab", "show"]) == 1
    assert "--debug" in capsys.readouterr().err
    assert not (tmp_path / "victim").exists()
