"""Makes the clients of the services that the configuration describes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from droveway.clients import sessions
from droveway.clients.cloud import Cloud
from droveway.clients.image import Images
from droveway.clients.network import Network
from droveway.clients.placement import Placement
from droveway.clients.volume import Volumes
from droveway.conf.services import is_named
from droveway.errors import Refused, StepError

if TYPE_CHECKING:
    from oslo_config import cfg

_NOBODY: Final = "00000000-0000-0000-0000-000000000000"
"""No server and no image has this uuid."""


class Services:
    """Makes the client of each service when it is first used.

    So a host whose configuration has only some of the services can use those, and `droveway doctor` can look at each by
    itself. Making a client sends nothing. Raises `droveway.errors.Refused` naming the option that a service lacks.
    """

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._conf = conf

    @functools.cached_property
    def placement(self) -> Placement:
        """Return the client of Placement."""
        session, where = sessions.connect(self._conf, "placement")
        return Placement(session, **where)

    @functools.cached_property
    def network(self) -> Network:
        """Return the client of Neutron."""
        user = f"{sessions.user_of(self._conf, 'neutron')} of [neutron]".lstrip()  # none, with auth_type none
        return Network(sessions.Neutron(self._conf), user=user)

    @functools.cached_property
    def volumes(self) -> Volumes:
        """Return the client of Cinder."""
        return Volumes(sessions.Proxy(self._conf, "cinder", version="3"))

    @functools.cached_property
    def images(self) -> Images | None:
        """Return the client of Glance; None when the configuration does not say how it is reached."""
        return Images(sessions.Proxy(self._conf, "glance", version="2")) if is_named(self._conf, "glance") else None

    def cloud(self) -> Cloud:
        """Return the clients of all services that moves ask."""
        return Cloud(placement=self.placement, network=self.network, volumes=self.volumes, images=self.images)

    def ask(self, group: str) -> None:
        """Send the service of this group of the configuration requests like those of a move, which change nothing.

        Raises `droveway.errors.StepError` when the service gives no answer. An optional service that the configuration
        does not name is not asked.
        """
        questions: dict[str, Callable[[], object]] = {
            "placement": lambda: self.placement.allocations(_NOBODY),
            "neutron": lambda: self.network.require_roles(),  # noqa: PLW0108 - else the client is made at once
            "cinder": lambda: self.volumes.for_server(_NOBODY),
            "glance": lambda: self.images.find(_NOBODY) if self.images is not None else None,
        }
        questions[group]()

    def require_answer(self, group: str) -> None:
        """Raise `droveway.errors.Refused` when the service of this group gives no answer to what a move asks of it."""
        try:
            self.ask(group)
        except StepError as error:
            # An error that names the group of the configuration already says how it is mended.
            mend = "" if f"[{group}]" in str(error) else f"; start it, or correct [{group}]"
            raise Refused(f"{error}{mend}") from None
