"""Checks that the worker of each host is registered, and of which release it is."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import metadata
from typing import Final

import sqlalchemy as sa

from droveway.clients.zookeeper import worker_path
from droveway.doctor.findings import FINE, Examined, Finding
from droveway.engines.conductor import incarnation
from droveway.errors import DrovewayError, Refused
from droveway.persistence.journal import cells_down
from droveway.persistence.nova import catalog
from droveway.wire import codec, commands, queries
from droveway.wire.levels import LEVEL
from droveway.wire.values import ACTION_VERSION, harmless

_HEARD: Final = frozenset({FINE, "worker-other"})
"""The codes for a worker that lacks no action, and for a host that is declared down."""


def check(examined: Examined) -> Iterator[Finding]:
    """Check the worker of each host that Nova knows; yields nothing where ZooKeeper or Nova's databases do not answer.

    Other checks report that they do not answer. On a host only its own worker is checked.
    """
    if examined.session is None:
        return
    try:
        # The certificate of a host gives access to its own nodes alone.
        known = {examined.host: None} if examined.host else _known(examined)
    except DrovewayError:
        return
    findings, any_up = [], False
    # A host cannot read the journal, so there the epoch of its worker is not checked.
    most = None if examined.host else _given(examined)
    for host in sorted(known):
        registered = examined.session.get(worker_path(host))
        if registered is not None:
            any_up = True
            findings.append(_registered(host, registered[0], most))
        elif known[host] is not None:
            findings.append(Finding(FINE, host, f"host {host} is declared down: {known[host]}"))
        else:
            findings.append(Finding("worker-away", host, f"no worker of host {host} is registered"))
    pinned = examined.conf.upgrade_levels.worker
    # A host sees its own worker alone, and a worker that was not heard may be of an older release.
    all_heard = not examined.host and any_up and all(each.code in _HEARD for each in findings)
    if pinned is not None and pinned < LEVEL and all_heard:
        detail = f"[upgrade_levels] worker is {pinned}, this release speaks {LEVEL}, and no worker lacks anything"
        findings.append(Finding("level-pinned", "upgrade_levels", detail))
    yield from findings


def _known(examined: Examined) -> dict[str, str | None]:
    """Return all hosts, each with why it was declared down; None for a host that is not declared down.

    Of a cell whose database does not answer, these are the hosts that Nova's API database maps to it.  They count as
    declared down when the cell is.
    """
    site = examined.site
    answering = catalog.answering(site.known_cells)
    found: dict[str, str | None] = {}
    if away := site.known_cells.keys() - answering.keys():
        with site.journal.read() as session:
            down = cells_down.find(session)
        for cell in away:
            found |= dict.fromkeys(catalog.hosts_of(site.api, cell), down.get(cell))
    for host in catalog.hosts(site.api, answering):
        found[host.name] = (host.disabled_reason or "no reason was given") if host.forced_down else None
    return found


def _given(examined: Examined) -> int | None:
    """Return the highest epoch that any host can have been given; None where the journal cannot be read.

    An epoch numbers the claims of conductors: a host obeys only the newest epoch that it has seen.
    """
    if examined.session is None:
        return None
    try:
        return incarnation.given(examined.session, examined.site.journal)[0]
    except (DrovewayError, sa.exc.SQLAlchemyError):
        return None


def _registered(host: str, data: bytes, most: int | None) -> Finding:
    try:
        registration = codec.decode(data, commands.Registration)
    except Refused as error:
        why = f"what the worker of host {host} says of itself cannot be read: {harmless(str(error))}"
        return Finding("worker-untrue", host, why)
    if registration.host != host:
        why = f"the worker of host {host} says that it is the one of host {registration.host}"
        return Finding("worker-untrue", host, why)
    if most is not None and registration.epoch > most:
        why = f"the worker of host {host} has seen epoch {registration.epoch}; none above {most} was given to any host"
        return Finding("worker-untrue", host, why)
    wanted = {f"{action}@{ACTION_VERSION}" for action in (*commands.ACTIONS, *queries.QUERIES)}
    if lacks := sorted(wanted - set(registration.actions)):
        return Finding("worker-lacks", host, f"the worker of host {host} lacks {', '.join(lacks)}")
    own = metadata.version("droveway")
    if registration.version != own:
        return Finding(
            "worker-other", host, f"the worker of host {host} is of release {registration.version}, this is {own}"
        )
    return Finding(FINE, host, f"its worker is there ({registration.hypervisor})")
