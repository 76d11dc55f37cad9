"""Reads the facts by which a move that is asked for is allowed or refused, from a site's databases and services."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping

import sqlalchemy as sa
from sqlalchemy import orm

from droveway.clients.network import BINDING_EXTENDED, Port
from droveway.clients.placement import OF_PORTS
from droveway.engines.operations.end_facts import flavors, quota_usages
from droveway.engines.site.site import Site
from droveway.errors import Refused, StepError
from droveway.persistence.database import Database, DatabaseUnusable
from droveway.persistence.journal import cells_down, debts
from droveway.persistence.journal.tables import Move
from droveway.persistence.nova import catalog, copies, namesakes, server_features
from droveway.printable import SHORT
from droveway.scheduler.facts import SHELVE, UNSHELVE, Facts


def of_move(site: Site, name: str, *, flavor: str | None, host: str | None, to_cell: str | None = None) -> Facts:
    """Read the facts of a resize or a cold migration; raises `droveway.errors.NotFound` for a name that is unknown."""
    facts = _of_server(site, name, flavor=flavor, host=host, to_cell=to_cell)
    if facts.ports:
        with _answers_or_refuses():
            facts = dataclasses.replace(facts, binds_twice=site.cloud.network.has_extension(BINDING_EXTENDED))
    why = _bars_moves_between_cells(site) if facts.other_cells else ""
    return dataclasses.replace(facts, other_cells={cell: each or why for cell, each in facts.other_cells.items()})


def _bars_moves_between_cells(site: Site) -> str:
    """Say why no move may leave its cell while a super conductor of Nova is up; empty when a move may.

    Nova's API sends the confirm, revert or delete of a server that is moved between cells to a super conductor.  That
    one would then remove disks and attachments that Droveway's move still needs.
    """
    try:
        up = site.super_conductors()
    except DatabaseUnusable as error:
        return f"nobody can tell whether a super conductor of Nova is up: {error}"
    return (
        f"Nova's super conductor on host {up[0]} is up, and would break the move when a user confirms, reverts or "
        "deletes the server through Nova: stop it for as long as the move is open, or keep the server in its cell"
        if up
        else ""
    )


def _of_server(site: Site, name: str, *, flavor: str | None, host: str | None, to_cell: str | None = None) -> Facts:
    cells = catalog.answering(site.known_cells)
    away = frozenset(site.known_cells) - cells.keys()
    hosts = catalog.hosts(site.api, cells)
    unread = [(each, host) for each in away for host in catalog.hosts_of(site.api, each)]
    server = catalog.find_server(site.api, site.known_cells, name)
    with site.journal.read() as session:
        open_move = session.scalar(sa.select(Move.id).where(Move.active_server == server.id))
    new = catalog.find_flavor(site.api, flavor) if flavor else None
    cell_name = catalog.find_cell(site.api, to_cell).name if to_cell else None
    target = catalog.find_host(site.api, site.known_cells, host, cell=cell_name or server.cell) if host else None
    source = catalog.find_host(site.api, site.known_cells, server.host, cell=server.cell) if server.host else None
    goes_to = cell_name or (target.cell if target else server.cell)
    disabled = {cell.name for cell in catalog.cells_of(site.api) if cell.disabled}
    with site.api.read() as api, cells[server.cell].read() as cell:
        features = server_features.features(api, cell, server.id)
        bound_to_cell = copies.barred(cell, server.id)
    with _answers_or_refuses():
        held = site.cloud.placement.allocations(server.id).allocations
    return Facts(
        server=server,
        current=flavors(site, server)["cur"],
        new=new,
        may_use=new is None or catalog.may_use(site.api, new, server.project),
        source=source,
        target=target,
        up=frozenset(each.name for each in hosts) - site.away(),
        namesakes=namesakes.of_hosts(hosts, unread),
        open_move=open_move[:SHORT] if open_move else None,
        holds_allocation=source is not None and source.node in held,
        holds_anything=bool(held),
        holds_for_ports=tuple(
            sorted({name for amounts in held.values() for name in amounts if name.startswith(OF_PORTS)})
        ),
        same_host_cold_migrate=bool(server.host) and site.migrates_to_same_host(str(server.host)),
        features=features,
        ports=_ports(site, server.id),
        quota_usages=quota_usages(site, server, cells) if new is not None else (),
        to_cell=cell_name,
        may_leave_cell=site.conf.cross_cell.allowed,
        cell_disabled=goes_to in disabled,
        bound_to_cell=bound_to_cell,
        cells_away=away,
        other_cells=_standing(site, server, cells) if site.conf.cross_cell.allowed else {},
    )


def _ports(site: Site, server: str) -> tuple[Port, ...]:
    """Read the server's ports.

    Raises Refused where Neutron does not tell all of them, or does not let Droveway's user bind them.
    """
    network = site.cloud.network
    with _answers_or_refuses():
        found = tuple(network.listed_ports(server))
        if found:
            network.require_service()
    return found


@contextlib.contextmanager
def _answers_or_refuses() -> Iterator[None]:
    """Refuse the request when a service does not answer: nothing of the move is written yet."""
    try:
        yield
    except StepError as error:
        raise Refused(str(error)) from None


def _standing(site: Site, server: catalog.Server, answering: Mapping[str, Database]) -> dict[str, str]:
    """Return each other cell, with the reason why the server may not enter it; empty for none.

    A reason is that the cell has rows of the server already, owes a clean-up of it, or is declared down.
    """
    found = dict.fromkeys(site.known_cells.keys() - {server.cell}, "")
    for name in found.keys() & answering.keys():
        with answering[name].read() as session:
            found[name] = copies.standing(session, server.id)
    with site.journal.read() as session:
        owing = debts.owing_cells(session, server.id) | _down(session)
    return found | {name: why for name, why in owing.items() if name in found}


def of_shelve(site: Site, name: str, *, discard_ephemeral: bool) -> Facts:
    """Read the facts of a shelve; raises `droveway.errors.NotFound` for a name that is unknown."""
    return dataclasses.replace(
        _of_server(site, name, flavor=None, host=None),
        asked=SHELVE,
        discards_ephemeral=discard_ephemeral,
        has_image_service=site.cloud.images is not None,
    )


def of_unshelve(site: Site, name: str, *, host: str | None, to_cell: str | None) -> Facts:
    """Read the facts of an unshelve; raises `droveway.errors.NotFound` for a name that is unknown."""
    facts = _of_server(site, name, flavor=None, host=host, to_cell=to_cell)
    images, image = site.cloud.images, facts.features.shelved_image
    with _answers_or_refuses():
        found = images.find(image) if images is not None and image is not None else None
    return dataclasses.replace(
        facts,
        asked=UNSHELVE,
        has_image_service=images is not None,
        image_status=found.status if found is not None else None,
    )


def _down(session: orm.Session) -> dict[str, str]:
    return {cell: f"it is {why}" for cell, why in cells_down.find(session).items()}
