"""The mutants that are made from the graphs: one for each step, and the page says what noticed each."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from proofs.crash import points as crash_points
from proofs.crash import without as crash_without
from proofs.matrix import effects as matrix_effects
from proofs.matrix import table as matrix_table

from droveway.errors import DrovewayError
from droveway.flows import registry


def test_a_step_without_its_effect_answers_and_its_graph_is_put_back() -> None:
    for effect in crash_without.effects():
        graph = registry.latest(effect.kind)
        with crash_without.taken_out(effect, {effect.step: {"said": 1}}):
            other = registry.latest(effect.kind)
            assert other.digest() == graph.digest()
            changed = [pair for pair in zip(graph.walk(), other.walk(), strict=True) if pair[0] is not pair[1]]
            assert [step.step_name() for step, _idle in changed] == [effect.step]
            assert changed[0][1].perform(None, None) == {"said": 1}  # type: ignore[arg-type]
            assert other.no_return.step_name() == graph.no_return.step_name()
        assert registry.latest(effect.kind) is graph


def test_a_step_that_there_is_not_is_refused() -> None:
    with pytest.raises(DrovewayError, match="there is no step resize:nothing"):
        crash_without.parse("resize:nothing")


def test_what_only_breaks_proves_nothing() -> None:
    assert matrix_effects.proves("purpose: its disks on host2 disk size is 1, not 2")
    for trouble in ("", "step x met TypeError: no", "the process was ended by signal 9 after 100 s"):
        assert not matrix_effects.proves(trouble)


def test_the_page_has_each_step_of_each_graph() -> None:
    """Its absence was noticed in the graphs that there are."""
    page = Path(matrix_effects.PAGE).read_text(encoding="utf-8")
    rows = re.findall(r"^   \* - (\S+):(\S+)\n     - ``(\S+)`` \(\S+\): ``.+``$", page, re.MULTILINE)
    how = (
        "tools/mutate --graph writes docs/graph-mutants.rst anew. With --only KIND:STEP it tries one step and writes "
        "nothing. A step that only looks first needs a world in tests/proofs/crash/worlds.py in which it refuses"
    )
    assert [f"{kind}:{step}" for kind, step, _ in rows] == [str(effect) for effect in crash_without.effects()], how
    assert all(crash_points.parse(point).first.step == step for _kind, step, point in rows)
    assert [line for line in matrix_table.graphs() if f"- {line}" not in page] == [], how
