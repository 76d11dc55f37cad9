"""Checks that the journal and Nova's databases answer, and that the journal's schema and clock fit."""

from __future__ import annotations

import datetime as dt
from collections.abc import Container, Iterator
from typing import Final

from droveway import clocks
from droveway.doctor.findings import FINE, Examined, Finding
from droveway.errors import DrovewayError
from droveway.persistence.database import Database, DatabaseUnusable, database_time
from droveway.persistence.journal import cells_down, migrate, used_cells
from droveway.persistence.nova import catalog, namesakes

JOURNAL: Final = "journal"
SMALL: Final = dt.timedelta(seconds=2)


def check(examined: Examined) -> Iterator[Finding]:
    """Check each database that conductors use."""
    try:
        journal = examined.site.any_journal()
    except DrovewayError as error:
        yield Finding("database-away", JOURNAL, str(error))
    else:
        try:
            yield from _journal(journal)
        finally:
            journal.close()
    try:
        api = examined.site.api
    except DrovewayError as error:
        yield Finding("database-away", "api", str(error))
        return
    yield Finding(FINE, "api", "it answers")
    try:
        cells = examined.site.known_cells
    except DrovewayError as error:
        yield Finding("database-away", "cells", str(error))
        return
    yield from _renamed(examined, cells)
    down, answering = _down(examined), {}
    for name in sorted(cells):
        if name in down:
            yield Finding("cell-down", f"cell {name}", f"it is {down[name]}")
            continue
        try:
            cells[name].require(f"of cell {name}")
        except DrovewayError as error:
            yield Finding("database-away", f"cell {name}", str(error))
        else:
            answering[name] = cells[name]
            yield Finding(FINE, f"cell {name}", "it answers")
    hosts = catalog.hosts(api, answering)
    unread = [(cell, host) for cell in cells if cell not in answering for host in catalog.hosts_of(api, cell)]
    for host, why in sorted(namesakes.of_hosts(hosts, unread).items()):
        yield Finding("host-twice", f"host {host}", why)
    if examined.conf.cross_cell.allowed:
        yield from _super_conductors(examined)


def _super_conductors(examined: Examined) -> Iterator[Finding]:
    """Yield a finding for each super conductor of Nova that is up: Droveway refuses moves between cells meanwhile."""
    try:
        up = examined.site.super_conductors()
    except DrovewayError as error:
        yield Finding("database-away", "cell0", str(error))
        return
    for host in up:
        yield Finding(
            "super-conductor", f"host {host}", "Nova's super conductor is up there, as the database of cell0 says"
        )


def _down(examined: Examined) -> dict[str, str]:
    """Return the cells that are declared down, with the reason; none where the journal cannot be read.

    The check of the journal reports that the journal cannot be read.
    """
    try:
        journal = examined.site.journal
    except DrovewayError:
        return {}
    with journal.read() as session:
        return cells_down.find(session)


def _renamed(examined: Examined, cells: Container[str]) -> Iterator[Finding]:
    """Name each cell that moves or debts name and Nova does not know; nothing where the journal cannot be used."""
    try:
        journal = examined.site.journal
    except DrovewayError:
        return  # the journal's own check has named the error
    with journal.read() as session:
        for cell, sentence in used_cells.unknown(session, cells).items():
            yield Finding("cell-renamed", f"cell {cell}", sentence)


def _journal(journal: Database) -> Iterator[Finding]:
    try:
        migrate.check(journal)
    except DatabaseUnusable as error:
        yield Finding("schema-other", JOURNAL, str(error))
    else:
        yield Finding(FINE, JOURNAL, f"it answers, and has schema {migrate.HEAD}")
    with journal.read() as session:
        theirs = database_time(session)
    skew = abs(clocks.now() - theirs)
    detail = f"this machine's clock is {skew.total_seconds():.0f} s off from that of the journal's database"
    if skew > clocks.LARGEST_SKEW:
        yield Finding("clock-off", "clock", detail)
    elif skew > SMALL:
        yield Finding("clock-drifts", "clock", detail)
    else:
        yield Finding(FINE, "clock", "it agrees with that of the journal's database")
