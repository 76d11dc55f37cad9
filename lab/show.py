"""Summarises what a lab has, in a few lines."""

from __future__ import annotations

from typing import Any

from droveway.lab.session import Lab
from droveway.lab.stopped import stopped_workers
from droveway.persistence.journal import moves
from droveway.persistence.nova import catalog


def summary(lab: Lab) -> dict[str, Any]:
    """Return the lab's facts and counts."""
    with lab.journal.read() as session:
        unfinished = moves.open_moves(session)
    return {
        "directory": str(lab.layout.root),
        "version": lab.identity.version,
        "hypervisor": lab.identity.hypervisor,
        "sockets": lab.identity.sockets,
        "cells": [cell.name for cell in catalog.cells_of(lab.api)],
        "hosts": sorted(lab.identity.hosts),
        "stopped_workers": stopped_workers(lab.layout),
        "servers": len(catalog.servers(lab.api, lab.cell_databases)),
        "unfinished_moves": len(unfinished),
    }
