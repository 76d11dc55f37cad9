"""What a site's databases and services say about a move that is asked for, or about the end of one."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import orm

from droveway.clients.network import BINDING_EXTENDED, Port
from droveway.clients.placement import OF_PORTS
from droveway.engines.site.site import Parts, Site
from droveway.errors import NotFound, Refused, StepError
from droveway.flows.before import before
from droveway.flows.steps.hosts.elsewhere import DISKS_UNREACHABLE
from droveway.persistence.database import Database, DatabaseUnusable
from droveway.persistence.journal import cells_down, daemons, debts, kinds, moves
from droveway.persistence.journal.tables import Move, MoveStep
from droveway.persistence.nova import catalog, copies, objects, quotas, server_features, servers
from droveway.persistence.nova.cell import InstanceExtra
from droveway.printable import SHORT
from droveway.scheduler.facts import SHELVE, UNSHELVE, EndFacts, Facts
from droveway.wire.values import SWAP

_UNREACHED: Final = (
    sa.select(MoveStep.error, MoveStep.ended_at)
    .where(
        MoveStep.move_id == sa.bindparam("move"),
        MoveStep.flow.in_([kind.name for kind in kinds.KINDS if kind.elsewhere]),
        MoveStep.direction == "execute",
        MoveStep.error.is_not(None),
        MoveStep.ended_at.is_not(None),
    )
    .order_by(MoveStep.seq)
)


def of_move(site: Site, name: str, *, flavor: str | None, host: str | None, to_cell: str | None = None) -> Facts:
    """The facts of a resize or a cold migration; raises `droveway.errors.NotFound` for a name that is unknown."""
    facts = _of_server(site, name, flavor=flavor, host=host, to_cell=to_cell)
    if facts.ports:
        with _answers_or_refuses():
            facts = dataclasses.replace(facts, binds_twice=site.cloud.network.has_extension(BINDING_EXTENDED))
    why = _bars_moves_between_cells(site) if facts.other_cells else ""
    return dataclasses.replace(facts, other_cells={cell: each or why for cell, each in facts.other_cells.items()})


def _bars_moves_between_cells(site: Site) -> str:
    """Say why no move leaves a cell beside Nova's own super conductors; empty when one may.

    Nova's API sends them the confirm, the revert and the delete of a server that is moved between cells. What they do
    then takes the disks and the attachments that Droveway's move has left.
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
    with _looked_in_others(away):
        server = catalog.find_server(site.api, cells, name)
    with site.journal.read() as session:
        open_move = session.scalar(sa.select(Move.id).where(Move.active_server == server.id))
    new = catalog.find_flavor(site.api, flavor) if flavor else None
    cell_name = catalog.find_cell(site.api, to_cell).name if to_cell else None
    with _looked_in_others(away):
        target = catalog.find_host(site.api, cells, host, cell=cell_name or server.cell) if host else None
    source = catalog.find_host(site.api, cells, server.host, cell=server.cell) if server.host else None
    goes_to = cell_name or (target.cell if target else server.cell)
    disabled = {cell.name for cell in catalog.cells_of(site.api) if cell.disabled}
    with site.api.read() as api, cells[server.cell].read() as cell:
        features = server_features.features(api, cell, server.id)
        bound_to_cell = copies.barred(cell, server.id)
    with _answers_or_refuses():
        held = site.cloud.placement.allocations(server.id).allocations
    return Facts(
        server=server,
        current=_flavors(site, server)["cur"],
        new=new,
        may_use=new is None or catalog.may_use(site.api, new, server.project),
        source=source,
        target=target,
        up=frozenset(host.name for host in catalog.hosts(site.api, cells)) - site.away(),
        open_move=open_move[:SHORT] if open_move else None,
        holds_allocation=source is not None and source.node in held,
        holds_anything=bool(held),
        holds_for_ports=tuple(
            sorted({name for amounts in held.values() for name in amounts if name.startswith(OF_PORTS)})
        ),
        same_host_cold_migrate=bool(server.host) and site.stays_in_place(str(server.host)),
        features=features,
        ports=_ports(site, server.id),
        quota_usages=_quota_usages(site, server, cells) if new is not None else (),
        to_cell=cell_name,
        may_leave_cell=site.conf.cross_cell.allowed,
        cell_disabled=goes_to in disabled,
        bound_to_cell=bound_to_cell,
        cells_away=away,
        other_cells=_standing(site, server, cells) if site.conf.cross_cell.allowed else {},
    )


def _ports(site: Site, server: str) -> tuple[Port, ...]:
    """Read the server's ports; raises Refused where Neutron does not tell all of them, or lets nobody bind them."""
    network = site.cloud.network
    with _answers_or_refuses():
        found = tuple(network.listed_ports(server))
        if found:
            network.require_service()
    return found


@contextlib.contextmanager
def _answers_or_refuses() -> Iterator[None]:
    """Refuse the request where a service does not answer: nothing of the move was written yet."""
    try:
        yield
    except StepError as error:
        raise Refused(str(error)) from None


@contextlib.contextmanager
def _looked_in_others(away: Collection[str]) -> Iterator[None]:
    """Let a name that is unknown be told with the cells that nobody could look in."""
    try:
        yield
    except NotFound as error:
        if not away:
            raise
        raise NotFound(f"{error} (nobody could look in {_named(away)}, whose database does not answer)") from None


def _named(cells: Collection[str]) -> str:
    return ", ".join(f"cell {cell}" for cell in sorted(cells))


def _standing(site: Site, server: catalog.Server, answering: Mapping[str, Database]) -> dict[str, str]:
    """Each cell that the server does not live in, with what it has of it already."""
    found = dict.fromkeys(site.known_cells.keys() - {server.cell}, "")
    for name in found.keys() & answering.keys():
        with answering[name].read() as session:
            found[name] = copies.standing(session, server.id)
    with site.journal.read() as session:
        owing = debts.owing_cells(session, server.id) | _down(session)
    return found | {name: why for name, why in owing.items() if name in found}


def of_shelve(site: Site, name: str, *, discard_ephemeral: bool) -> Facts:
    """The facts of a shelve; raises `droveway.errors.NotFound` for a name that is unknown."""
    return dataclasses.replace(
        _of_server(site, name, flavor=None, host=None),
        asked=SHELVE,
        discards_ephemeral=discard_ephemeral,
        has_image_service=site.cloud.images is not None,
    )


def of_unshelve(site: Site, name: str, *, host: str | None, to_cell: str | None) -> Facts:
    """The facts of an unshelve; raises `droveway.errors.NotFound` for a name that is unknown."""
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


def of_end(site: Parts, move: Move) -> EndFacts:
    """The facts of a confirm or revert of a move that waits for it."""
    answering = catalog.answering(site.known_cells)
    server = catalog.find_server(site.api, answering, move.server)
    with answering[server.cell].read() as session:
        migration = servers.migration(session, move.id)
    kept = _flavors(site, server)
    away, destination = site.away(), move.dest_host or move.source_host
    source_gone = is_gone(site, move.source_host, away)
    return EndFacts(
        move=move.id[:SHORT],
        server=server,
        migration=migration.status if migration is not None else None,
        deleting=move.delete_requested,
        destination=move.dest_host,
        home=move.dest_cell or move.source_cell,
        source=move.source_host,
        source_up=move.source_host not in away,
        source_gone=source_gone,
        elsewhere=_why_not_elsewhere(site, move, away) if source_gone else None,
        destination_up=destination not in away,
        destination_gone=is_gone(site, destination, away),
        old=kept.get("old", kept["cur"]),
        current=kept["cur"],
        quota_usages=_quota_usages(site, server, answering),
    )


def is_gone(site: Parts, host: str, away: Collection[str]) -> bool:
    """Whether a person declared the host down, and its worker is among those that are ``away``."""
    return host in away and _is_declared_down(site, host)


def _why_not_elsewhere(site: Parts, move: Move, away: Collection[str]) -> str | None:
    """Why no other host of its source's cell can take the move's server back; None where one may.

    It needs the server's disks, if there are any: from images that were kept, or in a directory that it shares with the
    source.  Where only hosts know what they share, they say so when the revert runs, before the guest is stopped: those
    that have said that they do not reach the disks are none of them until their workers start anew.
    """
    if not kinds.of(move.kind).crosses_cells:
        return "a revert within a cell needs its source"
    known = catalog.hosts(site.api, catalog.answering(site.known_cells))
    others = {host.name for host in known if host.cell == move.source_cell} - {move.source_host} - set(away)
    if not others:
        return f"no other host of cell {move.source_cell} is up"
    with site.journal.read() as session:
        record = before(moves.get(session, move.id, with_before=True))
    if move.keep_image or all(disk.name == SWAP for disk in record.guest.disks):
        return None
    sharing = {host for host in others if site.shares_storage(move.source_host, host) is not False}
    if not sharing:
        return "it was moved without --keep-image, so that its disks are on the source alone"
    with site.journal.read() as session:
        told = _unreached(session, move.id)
    if not told or sharing - told:
        return None
    tried = ", ".join(sorted(sharing & told))
    return f"it was moved without --keep-image, and nothing that the source has set aside is reached from {tried}"


def _unreached(session: orm.Session, move_id: str) -> set[str]:
    """Find the hosts that an earlier revert asked, and that do not reach the disks; a worker that came since may."""
    runs = session.execute(_UNREACHED, {"move": move_id})
    tried = {str(row.error["host"]): row.ended_at for row in runs if row.error["code"] == DISKS_UNREACHABLE}
    workers = daemons.known_workers(session).workers
    return {host for host, when in tried.items() if host not in workers or workers[host].started_at <= when}


def _is_declared_down(site: Parts, host: str) -> bool:
    with site.journal.read() as session:
        gone = cells_down.find(session)
    if any(host in catalog.hosts_of(site.api, cell) for cell in gone):
        return True
    return catalog.find_host(site.api, site.known_cells, host).forced_down


def _down(session: orm.Session) -> dict[str, str]:
    return {cell: f"it is {why}" for cell, why in cells_down.find(session).items()}


def _quota_usages(site: Parts, server: catalog.Server, cells: Mapping[str, Database]) -> tuple[quotas.QuotaUsage, ...]:
    """Read what counts against the server's quotas; as in Nova, only in those cells that answer."""
    defaults = {quotas.CORES: site.conf.quota.cores, quotas.RAM: site.conf.quota.ram}
    with contextlib.ExitStack() as stack:
        api = stack.enter_context(site.api.read())
        sessions = [stack.enter_context(database.read()) for database in cells.values()]
        return tuple(quotas.quota_usages(api, sessions, project=server.project, user=server.user, defaults=defaults))


def _flavors(site: Parts, server: catalog.Server) -> dict[str, catalog.Flavor]:
    """The server's own copies of its flavors, those that there are of ``cur``, ``old`` and ``new``."""
    with site.known_cells[server.cell].read() as session:
        text = session.scalar(
            sa.select(InstanceExtra.flavor).where(InstanceExtra.instance_uuid == server.id, InstanceExtra.deleted == 0)
        )
    return {slot: _flavor(objects.flavor_data(kept)) for slot, kept in json.loads(text or "{}").items() if kept}


def _flavor(fields: Mapping[str, Any]) -> catalog.Flavor:
    return catalog.Flavor(
        name=fields["name"],
        id=fields["flavorid"],
        vcpus=fields["vcpus"],
        memory_mb=fields["memory_mb"],
        root_gb=fields["root_gb"],
        ephemeral_gb=fields["ephemeral_gb"],
        swap_mb=fields["swap"],
        disabled=False,
        extra_specs=fields["extra_specs"],
    )
