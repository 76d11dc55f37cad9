"""Compares the guests that hypervisors define and run with the servers' hosts and states."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from droveway.audit.findings import Finding, Kind, update
from droveway.audit.records import HostView, ServerRow
from droveway.audit.snapshot import Phase, Snapshot, Standing
from droveway.persistence.nova.vm_states import PowerState, VmState
from droveway.printable import SHORT
from droveway.wire.queries import Guest
from droveway.workers.hypervisors.guests_log import Overlap

_RUNS: Final = frozenset({PowerState.RUNNING, PowerState.PAUSED})


def check(snapshot: Snapshot) -> Iterator[Finding]:
    """Find guests of no server, on a wrong host, missing, running twice, and on or off when they should not be."""
    for overlap in snapshot.overlaps:
        yield _overlap(snapshot, overlap)
    here: dict[str, dict[str, Guest]] = {}
    for view in snapshot.hosts:
        for guest in view.guests:
            here.setdefault(guest.server, {})[view.host] = guest
            yield from _where(snapshot, view, guest)
    for server, guests in here.items():
        yield from _twice(snapshot, server, guests)
    for standing in snapshot.standings.values():
        yield from _as_recorded(snapshot, standing, here.get(standing.server, {}))


def _overlap(snapshot: Snapshot, overlap: Overlap) -> Finding:
    server = overlap.start.server
    standing = snapshot.standings.get(server)
    return Finding(
        Kind.GUEST,
        "guests.log",
        f"the log of all guests shows that {overlap}",
        f"droveway move list --server {server}",
        ",".join(sorted({overlap.start.host, overlap.run.host})),
        server,
        standing.move_id if standing is not None else "",
    )


def _where(snapshot: Snapshot, view: HostView, guest: Guest) -> Iterator[Finding]:
    standing = snapshot.standings.get(guest.server)
    state = "runs" if guest.running else "is defined"
    if standing is None:
        marked = f", marked with the move {guest.move[:SHORT]}" if guest.move else ""
        detail = f"the guest {guest.name or guest.server}{marked} {state} on {view.host}, but its server does not exist"
    elif view.host in _allowed(standing, guest):
        return
    else:
        lives = standing.host or "no host"
        detail = f"the guest of {standing.name} {state} on {view.host}, but the server lives on {lives}"
    yield Finding(
        Kind.GUEST,
        guest.server,
        detail,
        _undefine(guest),
        view.host,
        guest.server,
        standing.move_id if standing is not None and standing.move_id else guest.move,
        owable=not guest.running,
    )


def _allowed(standing: Standing, guest: Guest) -> frozenset[str]:
    """Return the hosts that may have the guest in this state."""
    if standing.phase is Phase.MOVING:
        return standing.hosts
    # Nova leaves the source's domain defined until the confirm.
    source = standing.move.source_host if standing.phase is Phase.VERIFYING and standing.move is not None else None
    hosts = {standing.host, None if guest.running else source}
    return frozenset(host for host in hosts if host)


def _twice(snapshot: Snapshot, server: str, guests: dict[str, Guest]) -> Iterator[Finding]:
    running = sorted(host for host, guest in guests.items() if guest.running)
    if len(running) > 1:
        standing = snapshot.standings.get(server)
        name = standing.name if standing is not None else server
        yield Finding(
            Kind.GUEST,
            server,
            f"the guest of {name} runs on {' and '.join(running)} at once: its data is being damaged",
            f"virsh destroy {server}",
            ",".join(running),
            server,
            standing.move_id if standing is not None else "",
        )


def _as_recorded(snapshot: Snapshot, standing: Standing, guests: dict[str, Guest]) -> Iterator[Finding]:
    row = standing.row
    if row is None or standing.phase is Phase.MOVING or not standing.placed or row.host not in snapshot.seen_hosts:
        return
    guest = guests.get(str(row.host))
    if guest is None:
        if row.vm_state != VmState.ERROR:
            text = f"{standing.name} is {row.vm_state} on {row.host}, but no guest of it is defined there"
            yield _finding(standing, text, f"openstack server reboot --hard {standing.server}")
        return
    if (wrong := _power_state(standing, row, guest)) is not None:
        yield wrong
    should_run = _should_run(row)
    if should_run is not None and should_run != guest.running:
        recorded = row.old_vm_state if row.vm_state == VmState.RESIZED else row.vm_state
        state = "runs" if guest.running else "is off"
        text = f"the guest of {standing.name} {state} on {row.host}, but the server is recorded as {recorded}"
        yield _finding(standing, text, _switch(row, on=should_run))
    flavor = row.flavors.get("cur")
    if guest.defined and flavor is not None:
        wanted, found = (flavor["vcpus"], flavor["memory_mb"]), (guest.vcpus, guest.memory_mb)
        if wanted != found:
            text = (
                f"the guest of {standing.name} has {found[0]} vCPUs and {found[1]} MiB on {row.host}, but its flavor "
                f"says {wanted[0]} and {wanted[1]}"
            )
            yield _finding(standing, text, f"openstack server reboot --hard {standing.server}")


def _switch(row: ServerRow, *, on: bool) -> str:
    """Return the command that brings the guest into the state that its row says.

    Nova refuses to start a server that is recorded as active, to stop one that is recorded as stopped, and to reboot
    one that waits for its confirm or revert.
    """
    if not on:
        return f"virsh shutdown {row.uuid}"
    return (
        f"virsh start {row.uuid}" if row.vm_state == VmState.RESIZED else f"openstack server reboot --hard {row.uuid}"
    )


def _should_run(row: ServerRow) -> bool | None:
    """Say whether the guest should run; None when the rows do not say."""
    if row.task_state is not None:
        return None
    state = row.old_vm_state if row.vm_state == VmState.RESIZED else row.vm_state
    if state == VmState.STOPPED:
        return False
    # When a user shuts the guest down from within, Nova notices it later and then stops the server. So an active server
    # whose power_state is not running may be off.
    return True if state == VmState.ACTIVE and row.power_state in _RUNS else None


def _power_state(standing: Standing, row: ServerRow, guest: Guest) -> Finding | None:
    """Find a power_state that contradicts the guest; a guest that contradicts the vm_state has a finding of its own."""
    should_run = _should_run(row)
    if row.task_state is not None or (should_run is not None and should_run != guest.running):
        return None
    if guest.running == (row.power_state in _RUNS):
        return None
    wanted = PowerState.RUNNING if guest.running else PowerState.SHUTDOWN
    state = "runs" if guest.running else "is off"
    return Finding(
        Kind.ROW,
        "power_state",
        f"the guest of {standing.name} {state} on {row.host}, but its power_state is {row.power_state}",
        update("instances", {"uuid": row.uuid}, {"power_state": int(wanted)}),
        standing.host or "",
        standing.server,
        standing.move_id,
    )


def _finding(standing: Standing, detail: str, mend: str) -> Finding:
    host = standing.host or ""
    off = " is off on " in detail
    return Finding(Kind.GUEST, standing.server, detail, mend, host, standing.server, standing.move_id, owable=off)


def _undefine(guest: Guest) -> str:
    destroy = f"virsh destroy {guest.server}; " if guest.running else ""
    return f"{destroy}virsh undefine {guest.server}"
