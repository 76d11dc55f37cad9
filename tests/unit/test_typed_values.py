"""What operators type as values of options: numbers, spans of time and moments."""

from __future__ import annotations

import argparse
import datetime as dt

import pytest

from droveway.cli import main
from droveway.cli.view import spans

NEW = ("lab", "server", "create", "new", "--flavor", "small", "--host", "host1", "--image", "base")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("move", "list", "--limit", "0"), "0 is no number of moves: give 1 to 1000000000, or --all instead"),
        (("flavor", "list", "--min-disk", "-1"), "-1 is no size of a disk: give 0 to 1000000000 GB"),
        (("debt", "show", "0"), "0 is no number of a debt: give 1 to 1000000000"),
        (("lab", "fault", "clear", "-1"), "-1 is no number of a fault: give 1 to 1000000000"),
        (("lab", "fault", "arm", "--count", "0"), "0 is no number of times: give 1 to 1000000000"),
        (("lab", "serve", "--conductors", "9" * 20), f"{'9' * 20} is no number of conductors: give 1 to 100"),
        ((*NEW, "--ports", "-1"), "-1 is no number of ports: give 0 to 64"),
        ((*NEW, "--ports", "9" * 5000), "is no number of ports: give 0 to 64"),
        (("server", "list", "--max-width", "-1"), "-1 is no number of columns: give 0 to 1000000000; 0 is as many as"),
    ],
)
def test_a_number_that_makes_no_sense_is_refused_with_those_that_do(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The parser refuses it, before any lab or installation is looked for."""
    with pytest.raises(SystemExit) as stop:
        main.main([*words])
    assert stop.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "expected"), [("90", 90), ("90s", 90), ("30min", 1800), ("5 m", 300), ("24h", 86400), ("2d", 172800)]
)
def test_spans_of_time(text: str, expected: int) -> None:
    assert spans.seconds(text) == expected


@pytest.mark.parametrize("text", ["", "0", "-1", "1w", "h"])
def test_what_is_no_span_of_time(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is no time"):
        spans.seconds(text)


def test_a_span_that_may_be_none() -> None:
    assert (spans.seconds_or_none("0"), spans.seconds_or_none("7d")) == (0, 7 * 86400)
    with pytest.raises(argparse.ArgumentTypeError, match="is more than a year"):
        spans.seconds_or_none("366d")
    with pytest.raises(argparse.ArgumentTypeError, match="is no time"):
        spans.seconds_or_none("0h")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2h", dt.timedelta(hours=2)),
        ("3d", dt.timedelta(days=3)),
        ("2026-11-30", dt.datetime(2026, 11, 30)),  # noqa: DTZ001 - as databases hold it
        ("2026-11-30T09:31", dt.datetime(2026, 11, 30, 9, 31)),  # noqa: DTZ001
        ("2026-11-30 09:31:07Z", dt.datetime(2026, 11, 30, 9, 31, 7)),  # noqa: DTZ001
        ("2026-11-30T10:31:07+01:00", dt.datetime(2026, 11, 30, 9, 31, 7)),  # noqa: DTZ001
    ],
)
def test_a_moment_is_an_age_or_a_date_in_utc(text: str, expected: object) -> None:
    assert spans.moment(text) == expected


@pytest.mark.parametrize(
    "text", ["", "soon", "-1h", "2026-13-01", "1w", "0001-01-01T00:00+01:00", "9999-12-31T23:59-01:00"]
)
def test_what_is_no_moment(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is no moment: write how long ago it was"):
        spans.moment(text)
