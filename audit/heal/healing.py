"""Plans which findings of an audit are mended; a plan changes nothing.

What a move provably left behind is removed once it has ended. The allocations and bindings for ports that ask for
resources are set right, while nothing moves their server. All other findings are left alone, with the reason: a
server's own things, what somebody else made, what a move uses or a host still owes, and disks that may be the last
ones.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from droveway.audit.checks import behind, guaranteed
from droveway.audit.findings import Finding, Kind, Report
from droveway.audit.heal import shares
from droveway.audit.heal.shares import Home, Settlement, Unsettled
from droveway.audit.records import DebtRow, Directory, MoveRow, Store
from droveway.audit.snapshot import Snapshot, Standing
from droveway.clients.network import ACTIVE, RESOURCE_REQUEST
from droveway.clients.volume import RESERVED
from droveway.persistence.journal.states import State
from droveway.persistence.nova.vm_states import ENDED_MIGRATIONS
from droveway.wire.values import UUID

_PROBE: Final = re.compile(rf"\.?droveway-probe-({UUID})[A-Za-z0-9.-]*")
_UNFINISHED: Final = re.compile(rf"{UUID}\.(?:part|gone)-({UUID})(?:-(.+))?")
_COPY: Final = re.compile(UUID)


class Undo(NamedTuple):
    """The undo of a step, which the host's worker carries out as a debt; it changes only what the move made there."""

    action: str
    details: dict[str, object]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evidence:
    """What the journal and Placement say beyond a snapshot."""

    tried: Mapping[tuple[str, str], str] = dataclasses.field(default_factory=dict)
    """Maps (server, host) to the last ended move that went from or to the host, or tried to."""
    reserved: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Maps each attachment to the ended move that made it."""
    away: frozenset[str] = frozenset()
    """The hosts whose workers are away."""
    homes: Mapping[str, Home] = dataclasses.field(default_factory=dict)
    """Maps each server with findings about its ports to its host, with what the host's providers can give to ports."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mend:
    """What is done about a finding. Where ``does`` is empty, the finding is left alone for the reason ``why``."""

    finding: Finding
    move: str = ""
    """The ended move that left the thing, or in whose history the mend is noted; empty for a server without a move."""
    does: str = ""
    why: str = ""
    undo: Undo | None = None
    """What the finding's host undoes, for a finding on a host."""
    debt: int | None = None
    """The debt that was written off and becomes due again."""
    settlement: Settlement | None = None
    """The new allocations of the server and bindings of its ports, for a finding about ports."""
    home: Home | None = dataclasses.field(default=None, compare=False)
    """What the server's host can give. Others may take some of it meanwhile, so it does not count in a comparison."""

    def as_dict(self) -> dict[str, str]:
        """Return the finding and what is planned, with the keys that scripts rely on."""
        planned = {"heal": "mend" if self.does else "leave", "plan": self.does or self.why}
        return self.finding.as_dict() | planned


class LeftAlone(Exception):
    """The finding is left alone; the message says why."""


@dataclasses.dataclass(frozen=True)
class RuleInput:
    """Holds all that a rule may look at."""

    snapshot: Snapshot
    report: Report
    evidence: Evidence

    def ended(self, move_id: str, hosts: Iterable[str] = ()) -> MoveRow:
        """Return the move; raises `LeftAlone` when a clean-up of it, or a move of its server, may still come.

        The move must have ended, these hosts must owe nothing for it, and its server must have no open move.
        """
        move = self.snapshot.move_by_id.get(move_id)
        if move is None:
            raise LeftAlone("the journal knows no move that left it, so nobody can tell whose it is")
        if not move.ended or any(flow.move == move.id and not flow.ended for flow in self.snapshot.flows):
            raise LeftAlone(f"the move {move.short} has not ended and clears it by itself")
        for debt in self.snapshot.debts:
            if debt.move == move.id and debt.host in hosts and not debt.written_off and not debt.kept:
                raise LeftAlone(f"{debt.host} still owes something for the move {move.short}: droveway debt list")
        self.require_rest(move.server)
        return move

    def require_rest(self, server: str) -> None:
        """Raise `LeftAlone` while a move of the server is open."""
        held = self.snapshot.open_moves.get(server)
        if held is not None:
            raise LeftAlone(f"the move {held.short} holds {held.server_name}: droveway move show {held.short}")

    def quiet(self, server: str) -> Standing:
        """Return the server's standing; raises `LeftAlone` when it is on no host or has a task under way."""
        self.require_rest(server)
        standing = self.snapshot.standings.get(server)
        if standing is None or standing.row is None or not standing.placed:
            raise LeftAlone("its server lives on no host, so nobody can tell what it still needs")
        under_way = any(row.server == server and row.status not in ENDED_MIGRATIONS for row in self.snapshot.migrations)
        if standing.row.task_state is not None or under_way:
            raise LeftAlone(f"something else is under way with {standing.name}: see openstack server show {server}")
        return standing

    def others(self, finding: Finding, *kinds: Kind) -> Iterator[Finding]:
        """Yield the other findings of these kinds about the same server."""
        for other in self.report.findings:
            if other is not finding and other.kind in kinds and other.server == finding.server:
                yield other


Rule = Callable[[RuleInput, Finding], Mend]


def _guaranteed(given: RuleInput, finding: Finding) -> Mend:
    snapshot, server = given.snapshot, finding.server
    waits = snapshot.open_moves.get(server)
    if waits is not None and waits.stage is State.VERIFYING:
        raise LeftAlone(
            f"the move {waits.short} holds {waits.server_name} until it is confirmed or reverted: do that first"
        )
    standing = given.quiet(server)
    if not snapshot.shows_requests:
        # The plan would release all allocations for ports.
        raise LeftAlone(f"Neutron does not tell what ports ask for: let it load the extension {RESOURCE_REQUEST}")
    for debt in snapshot.debts:
        if snapshot.move_by_id[debt.move].server == server and not debt.written_off and not debt.kept:
            raise LeftAlone(f"{debt.owner} still owes something for {standing.name}: droveway debt list")
    for other in given.others(finding, Kind.ALLOCATION):
        if not other.guaranteed:
            raise LeftAlone(f"mend another finding about the server first: {other.detail}")
    home = given.evidence.homes.get(server)
    if home is None:
        raise LeftAlone(f"its host {standing.host} has no compute node")
    try:
        ports = [port for port in snapshot.ports if port.server == server]
        settlement = shares.settle(ports, snapshot.allocations.get(server, {}), home)
    except Unsettled as error:
        raise LeftAlone(str(error)) from None
    ended = [move.id for move in snapshot.moves if move.server == server and move.ended]
    return Mend(
        finding=finding,
        move=given.ended(ended[-1]).id if ended else "",
        does=shares.text(settlement, standing.name, home),
        settlement=settlement,
        home=home,
    )


def _allocation(given: RuleInput, finding: Finding) -> Mend:
    if not finding.move or finding.subject != finding.move:
        raise LeftAlone("it belongs to a server, or to no move that the journal knows")
    move = given.ended(finding.move)
    row = given.snapshot.migration_of.get(move.id)
    if row is not None and row.status not in ENDED_MIGRATIONS:
        raise LeftAlone(f"its migration is still {row.status} in cell {row.cell}")
    for other in given.others(finding, Kind.ALLOCATION, Kind.DISK, Kind.GUEST):
        if other.kind is Kind.ALLOCATION or set(other.host.split(",")) & given.snapshot.held(move.id).keys():
            raise LeftAlone(f"it may stand for something that is really there, so mend that first: {other.detail}")
    for host in given.snapshot.held(move.id):
        if host not in given.snapshot.seen_hosts | given.snapshot.down:
            raise LeftAlone(f"nobody could look whether something of it is on {host}")
    for debt in given.snapshot.debts:
        if debt.move == move.id and debt.host in given.snapshot.held(move.id) and not debt.kept:
            raise LeftAlone(f"it stands for what {debt.host} owed for the move {move.short} and has not undone")
    return Mend(finding=finding, move=move.id, does=f"release what the ended move {move.short} still holds")


def _binding(given: RuleInput, finding: Finding) -> Mend:
    standing = given.quiet(finding.server)
    port = next((port for port in given.snapshot.ports if port.id == finding.subject), None)
    if port is None or finding.host == standing.host or port.bindings.get(finding.host, ACTIVE) == ACTIVE:
        raise LeftAlone("only an INACTIVE binding beside the server's own is left over for certain")
    left_by = given.evidence.tried.get((finding.server, finding.host))
    if left_by is None:
        raise LeftAlone(f"no ended move of {standing.name} went from or to {finding.host}: Nova may have made it")
    move = given.ended(left_by)
    return Mend(
        finding=finding,
        move=move.id,
        does=f"delete the port's INACTIVE binding on {finding.host}, of the ended move {move.short}",
    )


def _attachment(given: RuleInput, finding: Finding) -> Mend:
    found = next((each for each in given.snapshot.attachments if each.id == finding.subject), None)
    if found is None:
        raise LeftAlone("the attachment is missing in Cinder, so there is nothing to remove")
    left_by = given.evidence.reserved.get(found.id)
    if left_by is None:
        raise LeftAlone("no ended move says in its history that it made this attachment")
    standing = given.quiet(finding.server)
    named = {device.attachment for device in standing.row.volumes} if standing.row is not None else set()
    if found.status != RESERVED or found.host is not None or found.id in named:
        raise LeftAlone(f"it is {found.status} and may be in use")
    move = given.ended(left_by)
    return Mend(
        finding=finding,
        move=move.id,
        does=f"delete the attachment, which the ended move {move.short} reserved and never used",
    )


def _disk(given: RuleInput, finding: Finding) -> Mend:
    store, entry = _entry(given.snapshot, finding)
    host = _one_host(given, store.hosts)
    probe, unfinished = _PROBE.fullmatch(entry.name), _UNFINISHED.fullmatch(entry.name)
    if probe is not None:
        move = given.ended(probe[1], [host])
        # The undo reads none of the other details, which only the step itself needs.
        details = {"definition": "", "vcpus": 0, "memory_mb": 0, "disk_bytes": 0, "probe": entry.name}
        return _on_host(finding, move, host, "storage probe", Undo("check_destination", details))
    if unfinished is not None:
        move = given.ended(unfinished[1], [host])
        if unfinished[2] not in (None, host) or finding.server != move.server:
            raise LeftAlone(f"its name is none that the worker of {host} gives")
        details = {"definition": "", "vcpus": 0, "memory_mb": 0, "disk_bytes": 0, "probe": f"droveway-probe-{move.id}"}
        return _on_host(finding, move, host, "unfinished copy", Undo("check_destination", details))
    if not _COPY.fullmatch(entry.name) or not entry.move:
        raise LeftAlone(
            "it may hold the only disks of something: heal removes only what a move copied or left unfinished"
        )
    move = given.ended(entry.move, [host])
    _refuse_own(move, host, "disks")
    _require_elsewhere(given, finding, host)
    if not finding.mend.startswith("rm "):
        raise LeftAlone("the server's own disks are not where they should be, and these may be the last")
    details = {"variant": "local", "source": "", "address": "", "probe": ""}
    return _on_host(finding, move, host, "copy of the disks", Undo("copy_disks", details))


def _guest(given: RuleInput, finding: Finding) -> Mend:
    views = [view for view in given.snapshot.hosts if view.host == finding.host]
    guest = next((guest for view in views for guest in view.guests if guest.server == finding.subject), None)
    if guest is None or not guest.move:
        raise LeftAlone("no move marked this guest as its own")
    if guest.running:
        raise LeftAlone("it runs: a guest that runs is stopped by a person only")
    host = _one_host(given, (finding.host,))
    move = given.ended(guest.move, [host])
    _refuse_own(move, host, "guest's settings")
    _require_elsewhere(given, finding, host)
    details: dict[str, object] = {"definition": "", "vcpus": 0, "memory_mb": 0, "volumes": [], "ports": []}
    return _on_host(finding, move, host, "definition of the guest", Undo("define_guest", details))


RULES: Final[Mapping[Kind, Rule]] = {
    Kind.BINDING: _binding,
    Kind.ATTACHMENT: _attachment,
    Kind.ALLOCATION: _allocation,
    Kind.GUEST: _guest,
    Kind.DISK: _disk,
}
"""The rule for each kind of finding, in the order in which findings are mended.

The kinds that hosts mend come last: while a host undoes something of a move, nothing else of that move is changed.
"""


def plan(snapshot: Snapshot, report: Report, evidence: Evidence) -> list[Mend]:
    """Return the mend of each finding in the order of work, and of debts that were written off; nothing is changed."""
    given = RuleInput(snapshot, report, evidence)
    again = list(_written_off(given))
    covered = {(mend.finding.host, mend.move) for mend in again}
    order = list(RULES)
    found = sorted(report.findings, key=lambda each: order.index(each.kind) if each.kind in order else len(order))
    return [*(_judge(given, finding, covered) for finding in found), *again]


def _judge(given: RuleInput, finding: Finding, covered: set[tuple[str, str]]) -> Mend:
    if (finding.host, finding.move) in covered and finding.kind in (Kind.DISK, Kind.GUEST):
        return Mend(
            finding=finding, why=f"{finding.host} removes it when it pays the debts that this plan makes due again"
        )
    try:
        _require_known(given, finding.server)
        rule = _guaranteed if finding.guaranteed else RULES.get(finding.kind, _nobody)
        return rule(given, finding)
    except LeftAlone as left:
        yourself = "" if finding.mend == guaranteed.HEALS else f"; to mend it yourself: {finding.mend}"
        return Mend(finding=finding, why=f"left alone: {left}{yourself}")


def _require_known(given: RuleInput, server: str) -> None:
    """Raise `LeftAlone` when the server's rows are older than the end of its last move, so that they prove nothing.

    Also when a cell could not be read.
    """
    if given.snapshot.unread_cells:
        named = ", ".join(cell.name for cell in given.snapshot.unread_cells)
        raise LeftAlone(f"cell {named} could not be read, so nobody can tell what is still needed")
    if (found := behind.of(given.snapshot, server)) is not None:
        raise LeftAlone(f"{found.what} does not know how the move {found.move.short} ended")


def _nobody(_: RuleInput, finding: Finding) -> Mend:
    raise LeftAlone(f"no finding of kind {finding.kind} is mended without a person")


def _written_off(given: RuleInput) -> Iterator[Mend]:
    for debt in given.snapshot.debts:
        # An operator may still want what was kept on purpose.
        if debt.written_off and not debt.kept and debt.host not in given.snapshot.down | given.evidence.away:
            yield _again(given, debt)


def _again(given: RuleInput, debt: DebtRow) -> Mend:
    move = given.snapshot.move_by_id[debt.move]
    finding = Finding(
        Kind.HOST,
        f"debt {debt.id}",
        f"{debt.host} is back, and what it owed for the move {move.short} of {move.server_name} was written off "
        f"({debt.action})",
        "droveway audit --heal",
        debt.host,
        move.server,
        move.id,
    )
    try:
        _require_known(given, move.server)
        given.ended(move.id)
    except LeftAlone as left:
        return Mend(finding=finding, why=f"left alone: {left}")
    standing = given.snapshot.standings.get(move.server)
    if standing is not None and standing.host == debt.host:
        return Mend(finding=finding, why=f"left alone: {move.server_name} lives on {debt.host}")
    does = f"let {debt.host} undo {debt.action} of the ended move {move.short} after all"
    return Mend(finding=finding, move=move.id, does=does, debt=debt.id)


def _entry(snapshot: Snapshot, finding: Finding) -> tuple[Store, Directory]:
    for store, entry in snapshot.entries():
        if f"instances/{entry.name}" == finding.subject and ",".join(store.hosts) == finding.host:
            return store, entry
    raise LeftAlone("it is missing, or lies among disks that are in use")


def _one_host(given: RuleInput, hosts: Iterable[str]) -> str:
    names = list(hosts)
    if len(names) > 1:
        raise LeftAlone(f"{' and '.join(names)} share their storage, so nobody can tell which of them made it")
    if names[0] in given.snapshot.down | given.evidence.away or names[0] not in given.snapshot.seen_hosts:
        raise LeftAlone(f"{names[0]} is away")
    return names[0]


def _refuse_own(move: MoveRow, host: str, what: str) -> None:
    """Raise `LeftAlone` for what a confirmed move has marked on its destination: it is the server's own since then.

    A confirm takes the mark off. The mark is still there if the destination was away at the confirm, or if an earlier
    release of Droveway confirmed the move.
    """
    if move.state is State.DONE and move.dest_host == host:
        # Even if Nova has evacuated the server since, its data may be here.
        raise LeftAlone(f"its {what} here have been the server's own since the move {move.short} was confirmed")


def _require_elsewhere(given: RuleInput, finding: Finding, host: str) -> None:
    standing = given.quiet(finding.server)
    if standing.host == host:
        raise LeftAlone(f"{standing.name} lives on {host}")
    if standing.host not in given.snapshot.seen_hosts:
        raise LeftAlone(f"nobody could look whether what {standing.name} needs is on {standing.host}")
    home = [view for view in given.snapshot.hosts if view.host == standing.host]
    if not any(guest.server == finding.server for view in home for guest in view.guests):
        raise LeftAlone(f"the guest of {standing.name} is not on {standing.host}, where it lives")


def _on_host(finding: Finding, move: MoveRow, host: str, what: str, undo: Undo) -> Mend:
    does = f"let {host} remove the {what} that the ended move {move.short} left there"
    return Mend(finding=finding, move=move.id, does=does, undo=undo)
