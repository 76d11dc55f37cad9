"""Checks the certificate of this machine's daemons."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Final

from droveway import certificates
from droveway.doctor.findings import FINE, Examined, Finding
from droveway.errors import Refused

SUBJECT: Final = "certificate"
SOON: Final = dt.timedelta(days=14)


def check(examined: Examined) -> Iterator[Finding]:
    """Check that the certificate can be used, and for how long."""
    try:
        identity = certificates.load(examined.conf)
    except Refused as error:
        yield Finding("certificate-wrong", SUBJECT, str(error))
        return
    if identity is None:
        yield Finding("certificate-none", SUBJECT, "[tls] names no certificate")
        return
    ends = f"{identity.certificate} holds until {identity.expires:%Y-%m-%d %H:%M}Z"
    soon = identity.expires - dt.datetime.now(dt.UTC) < SOON
    yield Finding("certificate-expires" if soon else FINE, SUBJECT, ends)
