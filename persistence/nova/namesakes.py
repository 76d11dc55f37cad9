"""Finds hosts of one name in several cells.

Droveway knows a worker by its host's name alone: in ZooKeeper, in the journal and on the other hosts.
"""

from __future__ import annotations

from collections.abc import Iterable

from droveway.persistence.nova.catalog import Host


def of_hosts(hosts: Iterable[Host], unread: Iterable[tuple[str, str]] = ()) -> dict[str, str]:
    """Return the sentence against each host name that stands in several cells.

    ``unread`` has cell and name of each host that Nova maps to a cell whose database does not answer.
    """
    return several([*((host.cell, host.name) for host in hosts), *unread])


def several(places: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the sentence against each host name that stands in several cells; ``places`` has cell and name of each."""
    cells: dict[str, set[str]] = {}
    for cell, host in places:
        cells.setdefault(host, set()).add(cell)
    return {host: _said(host, sorted(found)) for host, found in cells.items() if len(found) > 1}


def _said(host: str, cells: list[str]) -> str:
    return (
        f"host {host} stands in {' and '.join(f'cell {cell}' for cell in cells)}, and commands go to a worker by its "
        "host's name alone: delete the service that no machine has any more (openstack compute service delete), or "
        "give one of the machines another name"
    )
