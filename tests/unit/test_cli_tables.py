from __future__ import annotations

import argparse
import datetime as dt
import io

import pytest

from droveway.cli.view import columns, tables


def listed(names: list[str], rows: list[list[object]]) -> list[str]:
    out = io.StringIO()
    tables.TableFormatter().emit_list(names, rows, out, argparse.Namespace())
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
    tables.TableFormatter().emit_one(
        ["id", "state"], [columns.Short("12345678-9abc"), "done"], out, argparse.Namespace()
    )
    assert out.getvalue() == "id     12345678\nstate  done\n"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (59, "59 s"), (60, "1 min"), (3599, "59 min"), (7200, "2 h"), (200000, "2 d")]
)
def test_spans_are_given_in_their_largest_unit(seconds: float, text: str) -> None:
    assert columns.duration(seconds) == text


def test_a_time_is_relative_for_people_and_utc_for_programs() -> None:
    now = dt.datetime.now(dt.UTC).replace(tzinfo=None)
    assert columns.Time(now - dt.timedelta(minutes=5, seconds=9)).human_readable() == "5 min ago"
    assert columns.Time(now + dt.timedelta(hours=23, seconds=9)).human_readable() == "in 23 h"
    moment = dt.datetime(2026, 11, 21, 15, 43, 6)  # noqa: DTZ001 - as databases hold it
    assert columns.Time(moment).machine_readable() == "2026-11-21T15:43:06Z"
    assert (columns.Time(None).human_readable(), columns.Time(None).machine_readable()) == ("", None)


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (13314398617, "12.4 GiB")]
)
def test_bytes_are_given_in_units_of_1024(count: int, text: str) -> None:
    assert columns.size(count) == text


def test_a_long_record_is_cut_for_people_alone() -> None:
    facts = columns.Facts({"a": "x" * 100})
    assert len(facts.human_readable()) == 60
    assert facts.machine_readable() == {"a": "x" * 100}
