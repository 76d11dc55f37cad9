"""The rate of a copy and the time that it still takes, from what hosts really told."""

from __future__ import annotations

import random

import pytest

from droveway.cli.view.rate import SHORTEST_WINDOW, Sample, Series, left, rate

MIB = 1 << 20

# Seconds of work and MiB done, as a worker told them of a disk of 2812.5 MiB on a machine that had other work too.
RECORDED = [
    *((0.03, 4), (1.04, 124), (2.07, 256), (3.07, 420), (4.09, 564), (5.15, 676), (6.19, 800), (7.22, 900)),
    *((8.33, 1012), (9.4, 1124), (10.42, 1244), (11.52, 1376), (12.57, 1488), (13.62, 1628), (15.31, 1776)),
    *((16.32, 1888), (16.85, 1956), (17.9, 2052), (18.93, 2216), (19.97, 2340), (21.01, 2464), (22.03, 2580)),
    *((23.08, 2712), (23.91, 2812.5)),
]


def series(told: list[tuple[float, float]], kept: float = 0) -> list[Sample]:
    total = int(told[-1][1] * MIB)
    return [Sample(seconds, int(done * MIB), total, int(kept * MIB)) for seconds, done in told]


def furthest_off(samples: list[Sample]) -> float:
    """By what share of the whole time the predicted end was off at worst, once a tenth of the bytes were there."""
    whole, worst = samples[-1].seconds, 0.0
    for number, sample in enumerate(samples[:-1], 1):
        if sample.made * 10 >= sample.total - sample.kept:
            still = left(samples[:number])
            assert still is not None
            worst = max(worst, abs(sample.seconds + still - whole) / whole)
    return worst


def paced(speeds: list[float]) -> list[Sample]:
    """A word a second, of a copy that makes so many MiB in each."""
    done, told = 0.0, []
    for second, speed in enumerate(speeds, 1):
        done += speed
        told.append((float(second), done))
    return series(told)


def test_the_end_of_a_recorded_copy_is_foreseen_from_a_tenth_of_its_bytes_on() -> None:
    assert furthest_off(series(RECORDED)) <= 0.15


def test_the_end_is_foreseen_when_the_rate_jumps_to_and_fro() -> None:
    chance = random.Random(7)
    assert furthest_off(paced([chance.uniform(60, 140) for _ in range(600)])) <= 0.15


def test_a_slow_start_is_forgotten() -> None:
    speeds = [5.0] * 10 + [100.0] * 300
    assert rate(paced(speeds)[:70]) == pytest.approx(100 * MIB)


def test_a_lasting_change_is_believed() -> None:
    samples = paced([100.0] * 60 + [25.0] * 200)
    assert left(samples[:130]) == pytest.approx(260 - 130, rel=0.15)


def test_what_an_earlier_run_left_is_no_rate_of_this_one() -> None:
    samples = series([(1.0, 510), (2.0, 520), (50.0, 1000)], kept=500)
    assert rate(samples[:2]) == 10 * MIB
    assert left(samples[:2]) == 48.0


def test_nothing_is_said_too_early_or_of_what_stands_still() -> None:
    assert rate([]) is None
    assert left([Sample(0.2, 1, 1000)]) is None
    assert left([Sample(0.2, 100, 1000)]) == pytest.approx(1.8)
    assert rate([Sample(5.0, 30, 100, kept=30)]) is None


def test_a_window_reaches_back_over_half_of_the_run() -> None:
    samples = paced([10.0] * 100)
    assert samples[99].seconds / 2 > SHORTEST_WINDOW
    assert rate(samples) == pytest.approx(10 * MIB)


def test_a_run_that_begins_anew_begins_a_new_series() -> None:
    words = Series()
    for sample in (Sample(5.0, 50, 100), Sample(5.0, 50, 100), Sample(6.0, 60, 100)):
        words.add(sample)
    assert [sample.done for sample in words.samples] == [50, 60]
    words.add(Sample(0.5, 65, 100, kept=60))
    assert [sample.done for sample in words.samples] == [65]
    words.clear()
    assert words.samples == []
