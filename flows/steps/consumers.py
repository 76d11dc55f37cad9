"""Writes a consumer of Placement that somebody else may write too.

Neutron writes what a server holds where somebody changes the QoS policy of one of its ports, and Nova where it
evacuates the server.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import tenacity

from droveway.clients.placement import ConsumerChanged

ROUNDS: Final = 5


def looking_anew(write: Callable[[], None]) -> None:
    """Let ``write`` look at the consumer and write it, and again where somebody else wrote it in between.

    What Nova did in between is found by the look.  Raises the last `droveway.clients.placement.ConsumerChanged`.
    """
    tenacity.Retrying(
        stop=tenacity.stop_after_attempt(ROUNDS), retry=tenacity.retry_if_exception_type(ConsumerChanged), reraise=True
    )(write)
