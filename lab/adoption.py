"""Accepts databases of a lab that were restored from a copy or swapped, and goes on with them as they are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from droveway.engines.conductor.recorded import mirrored
from droveway.engines.operations.adoption import Memory
from droveway.errors import Refused
from droveway.lab import books, marks
from droveway.lab.parts import Parts
from droveway.lab.records import InFolder
from droveway.persistence.restored import Mark


class LabMemory(Memory):
    """Holds what the files of a lab know of its moves, apart from the journal: marks, mirrors and the audit's findings.

    The marks are those of `droveway.lab.marks`. A mirror holds what only the journal knew of a running move
    (`droveway.engines.conductor.recorded`).

    The caller holds the lab's lock. `droveway.engines.operations.adoption.adopt` reads this before the journal.

    Raises `droveway.errors.Refused` for what cannot be used at all: a truncated database, or another lab's Placement.
    """

    adopted = "the lab's databases were adopted as they are"

    def __init__(self, lab: Parts) -> None:
        files = lab.layout
        with marks.Databases(files, lab.identity.hosts) as databases:
            present, why = databases.read(), databases.truncated()
        known = marks.recorded(files) or present
        if why := why or marks.foreign_providers(files, known, present):
            raise Refused(why)
        seen = [mark for each in (known, present) for mark in (each, *each.workers.values())]
        self._lab = lab
        self.journal = lab.journal
        self.epoch = max(mark.epoch for mark in seen)
        self.step = max(mark.step for mark in seen)
        self.recorded = mirrored(InFolder(files.recorded))
        findings = defaultdict(list)
        for each in books.balance(lab).findings:
            findings[each.move].append(each.detail)
        self.findings = findings

    def begin_anew(self, mark: Mark, parked: Iterable[str]) -> None:  # noqa: ARG002 - the journal itself has the mark
        """Replace the lab's old marks by new ones, which are read from the databases as they are now.

        The old marks are deleted first. Otherwise a database that cannot be read now would keep its old mark.
        """
        self._lab.layout.marks.unlink(missing_ok=True)
        with marks.Databases(self._lab.layout, self._lab.identity.hosts) as databases:
            databases.record()
