"""Starts a conductor and a keeper over the parts of a lab or of an installation."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from importlib import metadata
from typing import Final

from sqlalchemy import exc

from droveway.clients.zookeeper import Coordination
from droveway.engines.conductor import eligibility
from droveway.engines.conductor.conductor import Conductor
from droveway.engines.conductor.recorded import Store
from droveway.engines.conductor.run import Probe, Resources
from droveway.engines.conductor.taskflow.board import MoveBoard
from droveway.engines.keeper import admission, queue, returning
from droveway.engines.keeper.admission import Racks
from droveway.engines.keeper.cell_debts import CellDebts
from droveway.engines.keeper.daemon_registry import DaemonRegistry
from droveway.engines.keeper.health import Standard
from droveway.engines.keeper.host_nodes import HostNodes
from droveway.engines.keeper.keeper import Keeper
from droveway.engines.keeper.outcomes import Nova
from droveway.engines.operations import move_requests
from droveway.engines.site.site import Parts
from droveway.flows import registry
from droveway.flows.run import MoveOptions
from droveway.persistence.database import absence
from droveway.persistence.journal import cells_down
from droveway.persistence.nova import catalog, declared
from droveway.scheduler.requests import rules

LOG = logging.getLogger(__name__)

KEEPER_ROUND: Final = 1.0
"""Seconds between two rounds of the keeper, each of which reads seven times from the journal.

A command that files a flow wakes the keeper sooner (`KEEPER_PROBE`).  Some commands file no flow: they lift a hold, or
let a parked move go on.  The keeper acts on such a command in its next round.
"""

KEEPER_PROBE: Final = 0.1
"""Seconds between two looks (probes) at whether a command has filed a flow.

It has nothing to do with the fault injector `Probe`.
"""

RACKS_FOR: Final = 60.0
"""Seconds for which the keeper uses what it read about the racks of hosts, before it reads it again."""


def conductor(
    site: Parts,
    coordination: Coordination,
    *,
    name: str,
    probe: Probe | None = None,
    ignored: Collection[str] = (),
    records: Store | None = None,
) -> Conductor:
    """Start a conductor over a session of its own; ``name`` must be new for each.

    What the journal recorded of moves is mirrored in ``records``, by default in ZooKeeper.  Tests inject faults with
    ``probe``, which flows call before and after each step.  ``ignored`` is as in
    `droveway.engines.conductor.incarnation.begin`.  Raises as that function does.
    """
    conf = site.conf
    resources = Resources(
        journal=site.journal,
        api=site.api,
        cells=site.cells,
        cloud=site.cloud,
        options=_options(site),
        host_away=conf.conductor.host_away,
        probe=probe,
        records=records,
    )
    found = Conductor(coordination, resources, registry.graph, name=name, slots=conf.conductor.threads, ignored=ignored)
    found.start()
    return found


def _options(site: Parts) -> MoveOptions:
    """Read the options of moves from the configuration; steps of every flow use them."""
    conf = site.conf
    return MoveOptions(
        max_attempts=conf.scheduler.max_attempts,
        allow_resize_to_same_host=conf.scheduler.allow_resize_to_same_host,
        cross_cell=conf.cross_cell.allowed,
        shutdown_timeout=conf.worker.shutdown_timeout,
        retry_for=conf.conductor.retry_for,
        retry_pause=conf.conductor.retry_pause,
        step_deadline=conf.conductor.step_deadline,
        level=conf.upgrade_levels.worker,
        rules=rules(conf.scheduler),
    )


def keeper(site: Parts, coordination: Coordination) -> Keeper:
    """Start a keeper over a session that it may share with a conductor."""
    conf = site.conf.confirm
    found = Keeper(
        coordination,
        site.journal,
        MoveBoard(coordination),
        lambda kind: eligibility.chosen(kind, site.conf.upgrade_levels.worker).reference(),
        limits=admission.limits(site.conf),
        racks=_racks(site),
        nova=Nova(site.api, site.known_cells),
        every=KEEPER_ROUND,
        probe=KEEPER_PROBE,
        standard=Standard(healthy_after=conf.healthy_after, probe_timeout=conf.probe_timeout),
        level=site.conf.upgrade_levels.worker,
        filing=lambda due: move_requests.filing(site, due.move, due.kind, for_delete=due.for_delete),
        find_home=returning.homes(site.api, site.cells),
        declared=lambda: _declared(site),
        cells=CellDebts(site.journal, site.api, site.cells, site.cloud, _options(site)),
    )
    found.start()
    return found


def _declared(site: Parts) -> frozenset[str]:
    """Find the hosts that a person declared down, each by itself or with its whole cell.

    A host of a cell whose database is away counts as not declared down, unless the whole cell is.
    """
    with site.journal.read() as session:
        gone = cells_down.find(session)
    found = frozenset(host for cell in gone for host in catalog.hosts_of(site.api, cell))
    for name, database in site.known_cells.items():
        if name in gone:
            continue
        try:
            with database.read() as session:
                found |= declared.down(session)
        except (exc.OperationalError, exc.InterfaceError) as error:
            LOG.info(
                "Nobody can say which hosts of cell %s are declared down: %s",
                name,
                absence(error) or type(error).__name__,
            )
    return found


def host_nodes(site: Parts, coordination: Coordination) -> HostNodes:
    """Start what makes the folders of hosts in ZooKeeper, which workers have no right to make."""
    found = HostNodes(coordination, site.api)
    found.start()
    return found


def _racks(site: Parts) -> Callable[[], Racks]:
    """Return a function that gives the racks of all hosts; it reads them anew after `RACKS_FOR` seconds."""
    known: tuple[float, Racks] = (-RACKS_FOR, {})

    def racks() -> Racks:
        nonlocal known
        if time.monotonic() - known[0] >= RACKS_FOR:
            known = time.monotonic(), queue.racks_of(site.api, site.conf)
        return known[1]

    return racks


def daemon_registry(site: Parts, coordination: Coordination, *, name: str) -> DaemonRegistry:
    """Start what keeps the journal's rows of conductors and workers current; ``name`` is this conductor's."""
    found = DaemonRegistry(coordination, site.journal, name=name, version=metadata.version("droveway"))
    found.start()
    return found
