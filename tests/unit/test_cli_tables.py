from __future__ import annotations

import argparse
import datetime as dt
import io
from collections.abc import Sequence
from typing import Any

import pytest

from droveway.cli.commands import debt, move, server
from droveway.cli.view import columns, marks, tables


def options(max_width: int | None = None, *, fit_width: bool = False, spare: Sequence[str] = ()) -> argparse.Namespace:
    return argparse.Namespace(max_width=max_width, fit_width=fit_width, spare=spare)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def listed(
    names: list[str],
    rows: list[list[object]],
    asked: argparse.Namespace | None = None,
    out: io.StringIO | None = None,
) -> list[str]:
    out = out or io.StringIO()
    tables.TableFormatter().emit_list(names, rows, out, asked or options())
    return out.getvalue().splitlines()


def test_columns_are_aligned_and_numbers_stand_to_the_right() -> None:
    assert listed(["name", "n"], [["a", 1], ["longer", 22]]) == [
        "name     n",
        "a        1",
        "longer  22",
    ]


def test_a_cell_of_several_lines_stays_in_its_column() -> None:
    assert listed(["a", "b"], [[columns.Joined(["x", "y"]), "z"]]) == ["a  b", "x  z", "y"]


def test_an_empty_list_shows_the_names() -> None:
    assert listed(["a", "b"], []) == ["a  b"]


def test_a_record_is_a_line_a_field() -> None:
    out = io.StringIO()
    tables.TableFormatter().emit_one(["id", "state"], [columns.Short("12345678-9abc"), "done"], out, options())
    assert out.getvalue() == "id     12345678\nstate  done\n"


ID = "11111111-1111-4111-8111-111111111111"
SENTENCE = "the host cannot be reached"


def test_the_widest_column_of_a_table_is_wrapped_at_words_until_it_fits() -> None:
    rows: list[list[object]] = [["web", SENTENCE, 1], ["db", "", 22]]
    assert listed(["name", "why", "n"], rows, options(25)) == [
        "name  why               n",
        "web   the host cannot   1",
        "      be reached",
        "db                     22",
    ]


def test_a_record_is_wrapped_beside_the_names_of_its_fields() -> None:
    out = io.StringIO()
    tables.TableFormatter().emit_one(["error_code", "why"], ["away", SENTENCE], out, options(24))
    assert out.getvalue().splitlines() == [
        "error_code  away",
        "why         the host",
        "            cannot be",
        "            reached",
    ]


@pytest.mark.parametrize(
    "kept",
    [
        columns.Short(ID),
        marks.Marked("needs-operator", coloured=True),
        columns.Time(dt.datetime(2026, 11, 21, 15, 43, 6)),  # noqa: DTZ001 - as databases hold it
        ID,
    ],
    ids=["short-id", "state", "time", "id"],
)
def test_ids_states_and_times_are_whole_in_the_narrowest_table(kept: object) -> None:
    pieces = kept.pieces() if isinstance(kept, columns.Pieces) else [ID]
    lines = listed(["id", "why"], [[kept, "x" * 40]], options(60 if kept == ID else 30))
    assert [piece for piece in pieces if not any(piece in line for line in lines)] == []
    assert len(lines) > 2


def test_a_word_is_broken_only_where_that_makes_the_table_fit() -> None:
    rows: list[list[object]] = [["release_source_allocation", "confirm"]]
    assert listed(["step", "flow"], rows, options(20)) == [
        "step         flow",
        "release_sou  confirm",
        "rce_allocat",
        "ion",
    ]
    assert listed(["step", "flow"], rows, options(10)) == [
        "step                       flow",
        "release_source_allocation  confirm",
    ]


def test_a_table_that_cannot_fit_leaves_out_columns_that_it_can_spare_the_first_named_first() -> None:
    rows: list[list[object]] = [["web", "compute-01", "compute-02", "active"]]
    names = ["name", "source_host", "target_host", "state"]
    spare = ["state", "gone", "source_host"]
    assert listed(names, rows, options(50, spare=spare))[0].split() == names
    assert listed(names, rows, options(33, spare=spare))[0].split() == names[:3]
    assert listed(names, rows, options(20, spare=spare))[0].split() == ["name", "target_host"]
    assert listed(names, rows, options(5, spare=spare))[0].split() == ["name", "target_host"]
    assert listed(names, rows, options(0, spare=spare))[0].split() == names


@pytest.mark.parametrize(
    ("module", "kept"),
    [
        (move, {"id", "server_name", "state", "source", "destination"}),
        (server, {"id", "name", "status", "host"}),
        (debt, {"id", "host", "state", "move"}),
    ],
)
def test_a_list_spares_no_column_that_identifies(module: Any, kept: set[str]) -> None:
    spare = set(module.List.spare)
    assert spare < set(module.LISTED)
    assert spare & kept == set()


def test_a_table_is_as_wide_as_it_takes_unless_a_terminal_or_an_option_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "21")
    rows: list[list[object]] = [["web", SENTENCE]]

    def lines(asked: argparse.Namespace, out: io.StringIO) -> int:
        return len(listed(["name", "why"], rows, asked, out))

    assert lines(options(), io.StringIO()) == 2
    assert lines(options(fit_width=True), io.StringIO()) == lines(options(), Terminal()) == 3
    assert lines(options(0), Terminal()) == lines(options(0, fit_width=True), io.StringIO()) == 2
    assert lines(options(15), Terminal()) == 4


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (59, "59 s"), (60, "1 min"), (3599, "59 min"), (7200, "2 h"), (200000, "2 d")]
)
def test_spans_are_given_in_their_largest_unit(seconds: float, text: str) -> None:
    assert columns.duration(seconds) == text


def test_a_time_is_utc_and_for_people_also_how_long_ago() -> None:
    now = dt.datetime.now(dt.UTC).replace(tzinfo=None)
    before, after = now - dt.timedelta(minutes=5, seconds=9), now + dt.timedelta(hours=23, seconds=9)
    assert columns.Time(before).human_readable() == f"{before:%Y-%m-%d %H:%M:%S}Z, 5 min ago"
    assert columns.Time(after).human_readable() == f"{after:%Y-%m-%d %H:%M:%S}Z, in 23 h"
    assert columns.dated(before) == columns.Time(before).human_readable()
    moment = dt.datetime(2026, 11, 21, 15, 43, 6)  # noqa: DTZ001 - as databases hold it
    assert columns.Time(moment).machine_readable() == "2026-11-21T15:43:06Z"
    assert columns.utc(moment) == "2026-11-21 15:43:06Z"
    assert (columns.Time(None).human_readable(), columns.Time(None).machine_readable()) == ("", None)


def test_what_something_took_has_a_unit_for_people_and_is_seconds_for_programs() -> None:
    took = [columns.Took(seconds) for seconds in (0.04, 1.44, 130.2, None)]
    assert [each.human_readable() for each in took] == ["0.0 s", "1.4 s", "2 min 10 s", ""]
    assert [each.machine_readable() for each in took] == [0.04, 1.44, 130.2, None]


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (13314398617, "12.4 GiB")]
)
def test_bytes_are_given_in_units_of_1024(count: int, text: str) -> None:
    assert columns.size(count) == text


def test_a_record_in_a_record_is_shown_without_the_quotes_of_python() -> None:
    facts = columns.Facts({"connector": {"host": "host7", "ip": "127.0.0.1"}, "disks": [{"name": "disk"}, "swap"]})
    assert facts.human_readable() == "connector={host: host7, ip: 127.0.0.1}, disks=[{name: disk}…"


def test_a_long_record_is_cut_for_people_alone() -> None:
    facts = columns.Facts({"a": "x" * 100})
    assert len(facts.human_readable()) == 60
    assert facts.machine_readable() == {"a": "x" * 100}
