"""Asks hosts for proof before a copy or a guest counts as gone because a person says so.

A host has to show what the step itself would have asked of it.  The questions change nothing on the host.  They are
asked under the epoch of the move's last claim, which was given back or is the caller's own.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec

from droveway.clients.zookeeper import Coordination
from droveway.engines.conductor import fencing
from droveway.engines.conductor.host_channel import HostChannel, Overdue, Unreachable, key_of
from droveway.engines.site.site import Site
from droveway.errors import Refused, StepError
from droveway.flows.before import Before, shows_disks
from droveway.flows.steps import images
from droveway.persistence.database import absence
from droveway.persistence.journal import attempts, kinds
from droveway.persistence.journal.kinds import KINDS, Carries, Way
from droveway.persistence.journal.tables import Move, MoveFlow
from droveway.persistence.nova import mappings, objects, servers
from droveway.printable import SHORT
from droveway.wire.commands import CheckCopy, Command, GuestState, NoDetails

AWAY: Final = 5.0
"""Seconds for which to wait for a host whose worker has gone away; after that it has not answered."""

SECONDS: Final = 60.0
"""How long a host may take to answer."""


@dataclasses.dataclass(frozen=True)
class Resting:
    """Holds the step at which a move rests, and the direction that it was entered in."""

    move: Move
    flow: MoveFlow
    step: str
    direction: str
    sequence: int
    record: Before | None
    """What `record_before` wrote; None for a deletion."""


class HostChecks:
    """Asks the hosts of one move; each call sends a new question."""

    def __init__(self, site: Site, coordination: Coordination, rests: Resting, *, ending: str = "") -> None:
        """Read the move's epoch and rows.

        ``ending`` is the end of each refusal's sentence: what is not done because of the refusal, and the mend.
        """
        self._ending = ending
        self._site = site
        self._channel = HostChannel(coordination)
        self.rests = rests
        self.move = rests.move
        with site.journal.read() as session:
            self._epoch = fencing.standing_epoch(session, self.move.id) or 0
        move = self.move
        cell = mappings.home_cell(site.api, move.server, move.source_cell, move.dest_cell)
        with site.cell_databases[cell].read() as session:
            self.deleted = servers.is_gone(session, self.move.server)

    @property
    def record(self) -> Before:
        """Return what `record_before` wrote; raises Refused for a move that never came so far."""
        if self.rests.record is None:
            raise self.refused("nobody recorded how the server was before")
        return self.rests.record

    @property
    def destination(self) -> str:
        """Return the destination; the source of a move that has none yet."""
        return self.move.dest_host or self.move.source_host

    @property
    def return_host(self) -> str:
        """Return the host that a revert brings the server to: the source, or the host in a dead source's place."""
        if not kinds.of(self.rests.flow.kind).elsewhere:
            return self.move.source_host
        with self._site.journal.read() as session:
            tried = attempts.returns(session, self.move.id)
        return tried[-1].host if tried else self.move.source_host

    @property
    def shares(self) -> bool:
        """Tell whether both hosts keep their servers in one directory; a host in a dead source's place has its own."""
        if kinds.of(self.rests.flow.kind).elsewhere:
            return False
        return self.move.storage in ("shared", "same-host") or self.destination == self.move.source_host

    def state(self, host: str) -> GuestState | None:
        """Ask what the host holds; None for one that a person declared down."""
        value = self._command(host, "describe_guest", NoDetails())
        return None if value is None else msgspec.convert(value, type=GuestState)

    def show(self, host: str, action: str, details: msgspec.Struct) -> None:
        """Raise Refused unless the host shows its copy whole.  If the server is deleted, nobody needs the copy."""
        if self.deleted or self.move.delete_requested:
            return
        try:
            value = self._command(host, action, details)
        except StepError as error:
            raise self.refused(f"host {host} does not show its copy whole ({error})") from None
        if value is None:
            raise self.refused(f"host {host} is declared down and cannot show its copy")

    def show_image(self, image: str) -> None:
        """Raise Refused unless the image is there with its data.  If the server is deleted, nobody needs its image."""
        if self.deleted or self.move.delete_requested:
            return
        service = self._site.cloud.images
        found = None if service is None else service.find(image)
        if found is None or found.status != "active":
            raise self.refused(f"image {image} is not there with its data")

    def require_no_rows(self, cell: str) -> None:
        """Raise Refused while the cell has rows of the server, or does not answer."""
        try:
            stands = self._site.cells.has(cell, self.move.server)
        except Exception as error:
            if absence(error) is None:
                raise
            raise self.refused(f"cell {cell} does not answer, and may have rows of the server") from None
        if stands:
            raise self.refused(f"cell {cell} has rows of the server")

    def refused(self, why: str) -> Refused:
        """Make the refusal: why, what is not done because of it, and the mend."""
        short, step = self.move.id[:SHORT], self.rests.step
        ending = f"so step {step} of move {short} does not count as done: mend that, then droveway move retry {short}"
        return Refused(f"{why}, {self._ending or ending}")

    def _command(self, host: str, action: str, details: msgspec.Struct) -> dict[str, Any] | None:
        rests, move = self.rests, self.move
        fence = self._channel.fence(move.id, self._epoch, journal=self._site.journal)
        if host not in self._channel.workers():
            there = move.dest_cell if host == move.dest_host else None
            if self._site.cells.is_declared_down(there or move.source_cell, host):
                return None
            raise self.refused(
                f"the worker of host {host} is away and shows nothing (start it, or say that the host is off for good "
                f"with  droveway host down {host} --i-made-sure TEXT)"
            )
        asked = Command(
            key=key_of(rests.flow.uuid, rests.step, rests.direction, rests.sequence, f"proof-{secrets.token_hex(4)}"),
            host=host,
            move=move.id,
            server=move.server,
            epoch=self._epoch,
            step=rests.step,
            action=action,
            direction="execute",
            details=msgspec.to_builtins(details),
            deadline=SECONDS,
        )
        try:
            result = self._channel.command(asked, fence, away=AWAY)
        except (Unreachable, Overdue):
            raise self.refused(f"host {host} did not answer") from None
        finally:
            # Nobody clears up later after a move that has ended, so an unanswered question is removed too.
            self._channel.remove(host, asked.key)
        if result.error is not None:
            raise StepError(result.error["message"], code=result.error["code"], host=host)
        return result.value or {}


Proof = Callable[[HostChecks], None]


def _off(checks: HostChecks, host: str, *, empty: bool) -> None:
    """Raise Refused while the guest runs on the host or, with ``empty``, while its disks are there."""
    state = checks.state(host)
    if state is None:
        return
    if state.running:
        raise checks.refused(f"the guest runs on host {host}")
    if empty and state.disks:
        raise checks.refused(f"host {host} holds disks of the server")


def _source_discarded(checks: HostChecks) -> None:
    flavor = objects.flavor_data(checks.record.new_flavor)
    checks.show(checks.destination, "check_copy", CheckCopy(vcpus=flavor["vcpus"], memory_mb=flavor["memory_mb"]))
    state = checks.state(checks.move.source_host)
    if state is not None and state.set_aside:
        raise checks.refused(f"host {checks.move.source_host} still holds what was set aside")


def _destination_discarded(checks: HostChecks) -> None:
    source = checks.return_host
    if not (checks.deleted or checks.move.delete_requested):
        state = checks.state(source)
        if state is None or not shows_disks(state, checks.record):
            raise checks.refused(f"host {source} does not show the server's disks whole")
    _off(checks, checks.destination, empty=not checks.shares)


def _copy_discarded(checks: HostChecks) -> None:
    checks.show(checks.move.source_host, "check_set_aside", NoDetails())
    _off(checks, checks.destination, empty=False)


def _return_copy_discarded(checks: HostChecks) -> None:
    flavor = objects.flavor_data(checks.record.new_flavor)
    checks.show(checks.destination, "check_copy", CheckCopy(vcpus=flavor["vcpus"], memory_mb=flavor["memory_mb"]))
    _off(checks, checks.return_host, empty=False)


def _return_off(checks: HostChecks) -> None:
    _off(checks, checks.return_host, empty=False)


def _shelved(checks: HostChecks) -> None:
    if not checks.record.boot_from_volume:
        checks.show_image(images.image_of(checks.move.id))
    _off(checks, checks.move.source_host, empty=True)


def _download_discarded(checks: HostChecks) -> None:
    if checks.record.image is not None:
        checks.show_image(checks.record.image.image)
    _off(checks, checks.destination, empty=False)


def _source_off(checks: HostChecks) -> None:
    _off(checks, checks.move.source_host, empty=False)


def _destination_off(checks: HostChecks) -> None:
    _off(checks, checks.destination, empty=False)


def _source_rows_removed(checks: HostChecks) -> None:
    checks.require_no_rows(checks.move.source_cell)


def _target_rows_removed(checks: HostChecks) -> None:
    checks.require_no_rows(checks.move.dest_cell or "")


def _removed(checks: HostChecks) -> None:
    for host in {checks.move.source_host, checks.destination}:
        _off(checks, host, empty=True)


def _deleted_off(checks: HostChecks) -> None:
    for host in {checks.move.source_host, checks.destination}:
        _off(checks, host, empty=False)


_FORWARD: Final[dict[tuple[str, str], Proof]] = {
    ("stop_guest", "execute"): _source_off,
    ("copy_disks", "revert"): _copy_discarded,
    ("define_guest", "revert"): _destination_off,
    ("start_guest", "revert"): _destination_off,
}
_UNSHELVE: Final[dict[tuple[str, str], Proof]] = {
    ("copy_disks", "revert"): _download_discarded,
    ("define_guest", "revert"): _destination_off,
    ("start_guest", "revert"): _destination_off,
}
_REVERT: Final[dict[tuple[str, str], Proof]] = {
    ("stop_guest", "execute"): _destination_off,
    ("start_guest", "revert"): _source_off,
    ("discard_destination", "execute"): _destination_discarded,
}
_ELSEWHERE: Final[dict[tuple[str, str], Proof]] = {
    ("stop_guest", "execute"): _destination_off,
    ("copy_disks", "revert"): _return_copy_discarded,
    ("prepare_source_guest", "revert"): _return_off,
    ("start_guest", "revert"): _return_off,
    ("discard_destination", "execute"): _destination_discarded,
}
_CONFIRM: Final = kinds.CROSS_CELL_CONFIRM.name
_UNSHELVE_THERE: Final = kinds.CROSS_CELL_UNSHELVE.name
_CROSSING_BACK: Final = [kind for kind in KINDS if kind.crosses_cells and kind.carries is Carries.BACK]
_CROSSING_THERE: Final = [kind for kind in KINDS if kind.crosses_cells and kind.carries is Carries.TO_DESTINATION]
_FROM_IMAGE: Final = [kind.name for kind in KINDS if kind.begins_offloaded]
_BACK: Final = [kind for kind in KINDS if kind.ends is Way.REVERT and not kind.elsewhere]
_THERE: Final = [kind.name for kind in KINDS if kind.carries is Carries.TO_DESTINATION and kind.has_migration]
PROOFS: Final[Mapping[tuple[str, str, str], Proof]] = MappingProxyType(
    {
        **{(kind, *at): proof for kind in _THERE for at, proof in _FORWARD.items()},
        **{(kind, "discard_source", "execute"): _source_discarded for kind in kinds.names_of(Way.CONFIRM)},
        **{(kind.name, *at): proof for kind in _BACK for at, proof in _REVERT.items()},
        **{(kind.name, *at): proof for kind in KINDS if kind.elsewhere for at, proof in _ELSEWHERE.items()},
        **{(kind, "remove_source_records", "execute"): _source_rows_removed for kind in (_CONFIRM, _UNSHELVE_THERE)},
        **{(kind.name, "remove_target_records", "execute"): _target_rows_removed for kind in _CROSSING_BACK},
        **{(kind.name, "copy_records", "revert"): _target_rows_removed for kind in _CROSSING_THERE},
        ("shelve", "stop_guest", "execute"): _source_off,
        ("shelve", "discard_source", "execute"): _shelved,
        **{(kind, *at): proof for kind in _FROM_IMAGE for at, proof in _UNSHELVE.items()},
        ("delete", "stop_guest", "execute"): _deleted_off,
        ("delete", "remove_guest", "execute"): _removed,
    }
)
"""Kind of flow, step and direction → what is asked before rows, disks or a guest count as gone there."""


def of(rests: Resting) -> Proof | None:
    """Return what to ask hosts before the step counts as done; None if there is nothing to ask.

    Nothing is asked for a step after which nothing on a host counts as gone.
    """
    return PROOFS.get((rests.flow.kind, rests.step, rests.direction))
