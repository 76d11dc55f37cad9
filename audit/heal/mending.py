"""Carries out a plan. Each finding is checked again right before its mend, while no move of the server can begin.

The worker of a host removes what lies on that host. For this the mend writes a debt. The worker carries it out like any
other debt: only while the conductor that sent the debt's command still holds the move. A heal that is killed goes on
when it is run again. When two heals mend the same server, the second one waits for the first. The error `Held` says
that somebody may still need what a mend would change.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import orm

from droveway.audit import run
from droveway.audit.findings import Kind, Report
from droveway.audit.heal import healing, shares
from droveway.audit.heal.healing import Evidence, Mend
from droveway.audit.heal.shares import Home, Offer, Settlement
from droveway.audit.read import services as read_services
from droveway.audit.snapshot import Snapshot
from droveway.audit.sources import Sources, take
from droveway.clients.network import ACTIVE, INACTIVE, Network
from droveway.clients.placement import Placement, Provider
from droveway.clients.volume import RESERVED
from droveway.errors import DestinationFault, DrovewayError, NotFound
from droveway.persistence.journal import debts, orphans
from droveway.persistence.journal.orphans import Held, Hold
from droveway.persistence.journal.tables import Claim
from droveway.persistence.nova import servers
from droveway.persistence.nova.cell import Migration
from droveway.persistence.nova.vm_states import ENDED_MIGRATIONS

LOG = logging.getLogger(__name__)

DONE: Final = "done"
OWED: Final = "owed"
"""The outcome of a mend that the host's worker still has to carry out."""

UNDO_SECONDS: Final = 600.0
"""Seconds that a host may take for one debt."""

_MOVING: Final = sa.select(
    sa.exists().where(
        Migration.instance_uuid == sa.bindparam("server"),
        Migration.deleted == 0,
        Migration.status.not_in(ENDED_MIGRATIONS),
    )
)


@dataclasses.dataclass(frozen=True)
class Healing:
    """The report of an audit and the plan for it."""

    report: Report
    mends: list[Mend]

    @property
    def able(self) -> list[Mend]:
        """Return the mends that do something."""
        return [mend for mend in self.mends if mend.does]

    @property
    def clean(self) -> bool:
        """Say whether there is no finding and nothing to do."""
        return self.report.clean and not self.able


def plan(sources: Sources, away: frozenset[str]) -> Healing:
    """Run an audit and make the plan; ``away`` are the hosts without a worker. Nothing is changed."""
    report = run.audit(sources)
    snapshot = take(sources)
    return Healing(report, healing.plan(snapshot, report, _evidence(sources, snapshot, report, away)))


def heal(sources: Sources, planned: Healing, *, who: str, away: frozenset[str]) -> Iterator[tuple[Mend, str]]:
    """Carry out each mend whose finding is still there, and yield it with its outcome.

    The outcome is `DONE`, `OWED`, or a sentence that says why the mend was not made. A service that refuses one mend
    does not end the others.
    """
    still = plan(sources, away)
    for mend in planned.able:
        if mend not in still.able:
            yield mend, "left alone: it is not found any more, or something has changed since the plan was made"
            continue
        try:
            yield mend, _carry_out(sources, mend, who)
        except DrovewayError as error:
            yield mend, f"left alone: {error}"


def _evidence(sources: Sources, snapshot: Snapshot, report: Report, away: frozenset[str]) -> Evidence:
    concerned = {finding.server for finding in report.findings if finding.server}
    with sources.journal.read() as session:
        return Evidence(
            tried=orphans.tried_hosts(session, concerned),
            reserved=orphans.reserved(session, concerned),
            away=away,
            homes=_homes(sources, snapshot, {found.server for found in report.findings if found.guaranteed}),
        )


def _homes(sources: Sources, snapshot: Snapshot, servers: Collection[str]) -> dict[str, Home]:
    """Return what the host of each of these servers can give to ports; a host without a compute node is left out."""
    if not servers:
        return {}
    placement = sources.cloud.placement
    every = placement.providers()
    names = {provider.uuid: provider.name for provider in every}
    nodes = {(node.cell, node.host): node.uuid for node in snapshot.nodes}
    standings = [snapshot.standings[server] for server in sorted(servers) if server in snapshot.standings]
    found = {each.server: nodes.get((each.cell, each.host or "")) for each in standings}
    homes = {
        node: Home(
            host=snapshot.host_of_node[node],
            offers=tuple(_offer(placement, each) for each in every if snapshot.root_of(each.uuid) == node),
            names=names,
        )
        for node in set(found.values())
        if node is not None
    }
    return {server: homes[node] for server, node in found.items() if node is not None}


def _offer(placement: Placement, provider: Provider) -> Offer:
    return Offer(
        uuid=provider.uuid,
        name=provider.name,
        parent=provider.parent,
        traits=frozenset(placement.provider_traits(provider.uuid)),
        room=placement.room(provider.uuid),
    )


def _carry_out(sources: Sources, mend: Mend, who: str) -> str:
    if not mend.move:
        # The server has no move in whose history the mend could be noted. The command's output and the log tell of it.
        finding = mend.finding
        with orphans.hold_unmoved(sources.journal, finding.server, finding.server) as hold:
            outcome = _mend(sources, mend, hold, 0)
        LOG.info("%s healed %s (%s): %s", who, finding.server, finding.subject, mend.does)
        return outcome
    seq = orphans.note(sources.journal, mend.move, who=who, what=f"{mend.does} ({mend.finding.subject})")
    try:
        with orphans.hold(sources.journal, mend.move) as hold:
            outcome = _mend(sources, mend, hold, seq)
            orphans.conclude(hold.session, seq, outcome)
    except DrovewayError as error:
        with sources.journal.write() as session:
            orphans.conclude(session, seq, f"left alone: {error}")
        raise
    return outcome


def _mend(sources: Sources, mend: Mend, hold: Hold, seq: int) -> str:
    finding = mend.finding
    if mend.settlement is not None and mend.home is not None:
        _settle(sources, mend.settlement, mend.home, hold)
        return DONE
    if mend.debt is not None:
        orphans.owe_again(hold.session, mend.debt)
        return OWED
    if mend.undo is not None:
        _owe(mend, hold, seq)
        return OWED
    if finding.kind is Kind.ALLOCATION:
        _release(sources, hold)
    elif finding.kind is Kind.BINDING:
        _unbind(sources, finding.subject, finding.host, hold)
    elif finding.kind is Kind.ATTACHMENT:
        _detach(sources, finding.subject, hold)
    return DONE


def _release(sources: Sources, hold: Hold) -> None:
    """Release the move's allocations by the generation that was read, so that Placement refuses a late call."""
    server = hold.move.server
    with _row(sources, server) as row:
        if row is not None and not sources.cloud.placement.allocations(server).allocations:
            raise Held("the server has no allocation of its own, so this one may stand for it")
        hold.require()
        sources.cloud.placement.release(hold.move.id)


def _settle(sources: Sources, planned: Settlement, home: Home, hold: Hold) -> None:
    """Set the planned allocations, then the providers in the ports' bindings; a repeat does what is left to do."""
    server, network = hold.move.server, sources.cloud.network
    with _row(sources, server) as row:
        if row is None or row.host != home.host or row.task_state is not None or row.moving:
            raise Held(f"the server {server} has changed meanwhile: see openstack server show {server}")
        found = sources.cloud.placement.allocations(server)
        ports = [read_services.port_view(port) for port in network.ports(server)]
        now = shares.settle(ports, found.allocations, home)
        if now.done:
            return
        if now != planned:
            raise Held(f"the server {server} has changed meanwhile: its allocations, its ports' requests or profiles")
        if now.changes:
            hold.require()
            request = {"allocations": {uuid: {"resources": dict(each)} for uuid, each in now.allocations.items()}}
            sources.cloud.placement.rewrite(
                {server: (found, request, found.consumer_type)}, project_id=found.project_id, user_id=found.user_id
            )
        profiles = {port.id: port.profile for port in ports}
        for port, allocation in now.named.items():
            hold.require()
            _set_profile(network, port, profiles[port], shares.profile(profiles[port], allocation))


def _set_profile(network: Network, port: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Give the port's binding the new profile; if Neutron cannot bind the port with it, put the old profile back."""
    try:
        network.set_profile(port, new)
    except DestinationFault:
        network.set_profile(port, old)
        raise


def _unbind(sources: Sources, port: str, host: str, hold: Hold) -> None:
    server = hold.move.server
    with _row(sources, server) as row:
        found = next((each for each in sources.cloud.network.ports(server) if each.id == port), None)
        lives = row is not None and row.task_state is None and row.host != host
        if not lives or row is None or found is None or found.bindings.get(str(row.host)) != ACTIVE:
            raise Held(f"the server or its port {port} has changed meanwhile")
        if found.bindings.get(host, INACTIVE) != INACTIVE:
            raise Held(f"the binding of port {port} on {host} is active now")
        hold.require()
        sources.cloud.network.delete_binding(port, host)


def _detach(sources: Sources, attachment: str, hold: Hold) -> None:
    server = hold.move.server
    with _row(sources, server) as row:
        found = next((each for each in sources.cloud.volumes.for_server(server) if each.id == attachment), None)
        if row is None or row.task_state is not None or attachment in row.attachments:
            raise Held(f"the server has changed meanwhile and may use the attachment {attachment}")
        if found is not None and (found.status != RESERVED or found.host is not None):
            raise Held(f"the attachment {attachment} is {found.status} now")
        hold.require()
        sources.cloud.volumes.delete_attachment(attachment)


def _owe(mend: Mend, hold: Hold, seq: int) -> None:
    assert mend.undo is not None  # noqa: S101 - the caller looked
    session, move = hold.session, hold.move
    if session.get(Claim, move.id) is None:
        raise Held("nobody ever ran this move, so it made nothing on a host")
    if debts.owes(session, move.id, mend.finding.host, mend.undo.action):
        return
    details = {
        "flow": orphans.first_flow(session, move.id),
        "step": mend.undo.action,
        "sequence": seq,
        "details": mend.undo.details,
        "deadline": UNDO_SECONDS,
        "error": "",
    }
    debts.owe(session, move_id=move.id, host=mend.finding.host, action=mend.undo.action, details=details)


@dataclasses.dataclass(frozen=True)
class _Row:
    host: str | None
    task_state: str | None
    attachments: frozenset[str]
    moving: bool
    """Whether a migration of the server is under way in Nova."""


@contextlib.contextmanager
def _row(sources: Sources, server: str) -> Iterator[_Row | None]:
    """Lock the server's row within the block, so that Nova begins nothing with it; None when it does not exist."""
    with contextlib.ExitStack() as stack:
        for name in sources.cells.names():
            session: orm.Session = stack.enter_context(sources.cells.database(name).write())
            found = _locked(session, server)
            if found is not None:
                yield found
                return
        yield None


def _locked(session: orm.Session, server: str) -> _Row | None:
    try:
        servers.find(session, server)
    except NotFound:
        return None
    row = servers.live(session, server, deleting=True)
    attachments = frozenset(str(each.attachment_id) for each in servers.volumes(session, server) if each.attachment_id)
    return _Row(row.host, row.task_state, attachments, bool(session.scalar(_MOVING, {"server": server})))
