"""Every stable error code is explained, and `droveway explain` tells it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from support import codes

from droveway.cli import main
from droveway.cli.registry import COMMANDS
from droveway.cli.view.explanations import EXPLANATIONS

ROOT = Path(__file__).parents[2]
NOUNS = {name.split()[0] for name in COMMANDS}


def test_every_code_of_the_code_is_explained_and_no_other() -> None:
    found, where = codes.raised(), "EXPLANATIONS of cli/view/explanations.py"
    unexplained = {code: sorted(found[code]) for code in found.keys() - EXPLANATIONS.keys()}
    assert not unexplained, f"explain in {where} what these codes mean: {unexplained}"
    unused = EXPLANATIONS.keys() - found.keys()
    assert not unused, f"nothing has these codes any more, take them out of {where}: {sorted(unused)}"


def test_the_collected_codes_are_those_that_errors_carry() -> None:
    found = codes.raised()
    assert {"refused", "cancelled", "no-capacity", "host-unreachable", "flow-stopped", "retried"} <= set(found)
    assert {"placement-failed", "network-unavailable", "volume-failed", "image-unavailable"} <= set(found)
    assert found["no-valid-host"] == {"scheduler/candidates.py"}


@pytest.mark.parametrize("code", EXPLANATIONS)
def test_an_explanation_is_whole_sentences(code: str) -> None:
    for text in EXPLANATIONS[code]:
        assert re.fullmatch(r"[A-Z\[d].*[.?]", text), text
        assert "  " not in text


@pytest.mark.parametrize("code", EXPLANATIONS)
def test_the_commands_that_an_explanation_names_are_there(code: str) -> None:
    for words in re.findall(r"droveway ([a-z]+(?: [a-z]+)*)", EXPLANATIONS[code].mend):
        assert any(words == name or words.startswith(f"{name} ") for name in COMMANDS), words


def test_a_code_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["explain", "start-unknown"]) == 0
    page = capsys.readouterr().out
    assert [line.split()[0] for line in page.splitlines() if not line.startswith(" ")] == ["code", "means", "did", "do"]
    assert "droveway move retry MOVE" in " ".join(page.split())
    assert max(map(len, page.splitlines())) <= 100
    assert main.main(["explain", "start-unknown", "-f", "json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row == dict(
        zip(("code", "means", "did", "do"), ("start-unknown", *EXPLANATIONS["start-unknown"]), strict=True)
    )


def test_all_codes_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["explain"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(EXPLANATIONS)


@pytest.mark.parametrize(
    ("code", "mend"),
    [
        ("no-valid-hosts", "did you mean no-valid-host"),
        ("unavailable", "volume-unavailable"),
        ("zzzz", "droveway explain lists the codes"),
    ],
)
def test_an_unknown_code_is_refused_with_what_is_near(capsys: pytest.CaptureFixture[str], code: str, mend: str) -> None:
    assert main.main(["explain", code]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"droveway: there is no error code {code}: ")
    assert mend in error
    assert error.count("\n") == 1
