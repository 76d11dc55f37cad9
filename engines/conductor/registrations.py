"""Reads which workers are up: each registers itself in ZooKeeper."""

from __future__ import annotations

import logging
from typing import Final

from droveway.clients.zookeeper import HOSTS, Coordination, worker_path
from droveway.errors import Refused
from droveway.outages import Once
from droveway.wire.codec import decode
from droveway.wire.commands import Registration

REFUSED: Final = Once(logging.getLogger(__name__))
"""Logs what is refused of what hosts have written, each thing once."""


def workers(coordination: Coordination) -> dict[str, Registration]:
    """Return the registrations of the workers that are up, by host.

    A host whose registration cannot be read, or names another host, counts as one without a worker: one faulty host
    must not keep the others from being used.  Raises `droveway.errors.CoordinationLost`.
    """
    found: dict[str, Registration] = {}
    for host in coordination.children(HOSTS):
        node = coordination.get(worker_path(host))
        if node is None:
            continue
        try:
            registration = decode(node[0], Registration)
        except Refused as error:
            REFUSED.log_once(f"The registration of host {host} is refused", error)
            continue
        if registration.host == host:
            found[host] = registration
        else:
            REFUSED.log_once(f"The registration of host {host} is refused", f"it names {registration.host[:80]}")
    return found
