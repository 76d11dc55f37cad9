"""`tools/test` leaves cases out, and of no test all of them."""

from __future__ import annotations

import random

import pytest
from support import thinned

TESTS = [
    *(f"tests/integration/test_some.py::test_steps[{step}]" for step in "abcde"),
    *(f"tests/integration/test_some.py::test_makes[{make}]" for make in ("mariadb", "postgresql")),
    "tests/integration/test_some.py::test_one_case[only]",
    "tests/integration/test_some.py::test_plain",
    *(f"tests/integration/test_operations.py::test_steps[{step}]" for step in "abcdefg"),
    "tests/integration/test_crash_same_host.py::test_plain",
    *(f"tests/integration/test_guaranteed_shelving.py::test_each_{number}" for number in range(18)),
]


def runs(name: str, left: set[str]) -> int:
    """How many cases of the test run."""
    return sum(f"::{name}" in test for test in {*TESTS} - left)


def test_of_each_test_some_cases_run_and_of_some_files_none() -> None:
    left = thinned.left_out(TESTS)
    assert {runs(f"{name}[", left) for name in ("test_makes", "test_one_case")} == {1}
    of_steps = [test for test in TESTS if "test_some.py::test_steps" in test and test not in left]
    assert len(of_steps) in (1, 2)
    of_many = [test for test in TESTS if "test_operations.py" in test and test not in left]
    assert len(of_many) in (1, 2)
    assert [test for test in TESTS if "test_plain" in test and test not in left] == [
        "tests/integration/test_some.py::test_plain"
    ]


def test_of_files_that_run_the_tests_of_others_once_more_a_few_tests_run() -> None:
    left = thinned.left_out(TESTS)
    assert runs("test_each_", left) == 18 // thinned.EVERY_OF_MANY


def test_the_order_changes_nothing() -> None:
    other = random.Random(1).sample(TESTS, len(TESTS))
    assert thinned.left_out(other) == thinned.left_out(TESTS)


def test_not_the_same_make_runs_of_each_test() -> None:
    """Else one make of a database would be tried by none of them."""
    tests = [f"test_x.py::test_{number}[{make}]" for number in range(40) for make in ("mariadb", "postgresql")]
    left = thinned.left_out(tests)
    kept = {test.partition("[")[2] for test in tests if test not in left}
    assert kept == {"mariadb]", "postgresql]"}


@pytest.mark.parametrize("names", [thinned.FILES, thinned.MANY, thinned.ONCE_MORE])
def test_each_file_that_is_named_is_there(names: frozenset[str], pytestconfig: pytest.Config) -> None:
    there = {path.stem for path in (pytestconfig.rootpath / "tests/integration").glob("test_*.py")}
    assert names <= there
