"""Lets a process of the tests make once what each lab, and each command of one, makes anew."""

from __future__ import annotations

from support import compiled_statements, lab_databases_made_once, placement_made_once


def share() -> None:
    """Call this first of all, before a lab is opened."""
    compiled_statements.share()
    placement_made_once.share()
    lab_databases_made_once.share()
