"""The loops that look again and again: what keeps a round from its end, and how that is told."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from droveway.errors import CoordinationLost
from droveway.outages import Outage
from droveway.persistence.database import absence
from droveway.persistence.restored import Restored


@contextlib.contextmanager
def one_round(outage: Outage, log: logging.Logger, failed: str) -> Iterator[None]:
    """Nothing that is raised gets out: no round leaves anything half done, and the next one begins anew.

    A server that is away is told once a minute, any other error in full under the sentence ``failed``.
    """
    try:
        yield
    except (CoordinationLost, Restored) as error:
        outage.note(error)
    except Exception as error:
        if (why := absence(error)) is None:
            log.exception(failed)
        else:
            outage.note(why)
