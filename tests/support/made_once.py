"""Lets a process of the tests make once what each command of a lab makes anew: `compiled_statements`, and Placement."""

from __future__ import annotations

from support import compiled_statements, placement_made_once


def share() -> None:
    """Call this first of all, before a lab is opened."""
    compiled_statements.share()
    placement_made_once.share()
