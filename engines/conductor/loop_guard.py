"""Guards the rounds of a loop: an exception in one round is logged, and the loop goes on with the next."""

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
    """Log any exception of a round and let none out: a round leaves nothing half done, and the next one begins anew.

    While ZooKeeper or a database is away, or the journal was put back, the log says so once a minute.  Any other error
    is logged with its traceback, under the sentence ``failed``.
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
