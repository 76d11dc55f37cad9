"""Makes the clients of the services that the configuration describes; nothing is sent before the first request.

Each function raises `droveway.errors.Refused` naming what is missing of its service.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from droveway.clients import sessions
from droveway.clients.cloud import Cloud
from droveway.clients.network import Network
from droveway.clients.placement import Placement
from droveway.clients.volume import Volumes
from droveway.errors import Refused, StepError

if TYPE_CHECKING:
    from oslo_config import cfg

_NOBODY: Final = "00000000-0000-0000-0000-000000000000"
"""No server has this uuid."""


def cloud(conf: cfg.ConfigOpts) -> Cloud:
    """Make the clients of all services that moves ask."""
    return Cloud(placement=placement(conf), network=network(conf), volumes=volumes(conf))


def placement(conf: cfg.ConfigOpts) -> Placement:
    """Make the client of Placement."""
    session, where = sessions.connect(conf, "placement")
    return Placement(session, **where)


def network(conf: cfg.ConfigOpts) -> Network:
    """Make the client of Neutron."""
    return Network(sessions.Proxy(conf, "neutron", version="2"))


def volumes(conf: cfg.ConfigOpts) -> Volumes:
    """Make the client of Cinder."""
    return Volumes(sessions.Proxy(conf, "cinder", version="3"))


def ask(conf: cfg.ConfigOpts, group: str) -> None:
    """Ask the service of this group what a move asks of it, and change nothing; raises `droveway.errors.StepError`."""
    questions: dict[str, Callable[[], object]] = {
        "placement": lambda: placement(conf).allocations(_NOBODY),
        "neutron": lambda: network(conf).ports(_NOBODY),
        "cinder": lambda: volumes(conf).for_server(_NOBODY),
    }
    questions[group]()


def require_answer(conf: cfg.ConfigOpts, group: str) -> None:
    """Raise `droveway.errors.Refused` when the service of this group gives no answer to what a move asks of it."""
    try:
        ask(conf, group)
    except StepError as error:
        raise Refused(f"{error}; start it, or correct [{group}]") from None
