"""The facts of the page of preconditions, which no rule forbids, and what the rules say to facts."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

from droveway.errors import Refused
from droveway.scheduler import preconditions
from droveway.scheduler.facts import Facts

PAGE = Path(__file__).parents[3] / "docs" / "preconditions.py"


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("preconditions_page", PAGE)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


page = _load()


def refusal(facts: Any, kind: str | None = None) -> str | None:
    """What is said to a move with these facts, or to a confirm or revert (``kind``); None when it is accepted."""
    try:
        if isinstance(facts, Facts):
            preconditions.check(facts)
        else:
            preconditions.check_end(str(kind), facts)
    except Refused as refused:
        return str(refused)
    return None
