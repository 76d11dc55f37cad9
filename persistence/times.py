"""Times as Nova's databases and serialised objects hold them: UTC, whole seconds."""

from __future__ import annotations

from datetime import UTC, datetime

_JSON_FORMAT = "%Y-%m-%dT%H:%M:%SZ"


def utcnow() -> datetime:
    """Return the time as Nova's DATETIME columns hold it: UTC, naive, whole seconds."""
    return datetime.now(UTC).replace(tzinfo=None, microsecond=0)


def to_json(moment: datetime | None) -> str | None:
    """Return a column's time as a versioned object writes it (`2026-11-21T15:43:06Z`)."""
    return None if moment is None else moment.strftime(_JSON_FORMAT)
