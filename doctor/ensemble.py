"""Checks ZooKeeper: that it answers, how many servers it has, and who may write there."""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Iterator
from typing import Final

from kazoo import exceptions

from droveway import certificates
from droveway.clients.zookeeper import ROOT, Coordination
from droveway.doctor.findings import FINE, Examined, Finding
from droveway.errors import Refused

SUBJECT: Final = "zookeeper"
PATIENCE: Final = 3.0
"""Seconds that the check waits for a connection to one server of the ensemble."""
PORT: Final = 2181


def check(examined: Examined) -> Iterator[Finding]:
    """Check the session, each server of the ensemble, the use of TLS, and the access list of Droveway's root node."""
    yield from _plain(examined)
    if examined.session is None:
        refused = isinstance(examined.why, Refused)
        yield Finding("zookeeper-refused" if refused else "zookeeper-away", SUBJECT, str(examined.why))
        return
    examined.session.get(ROOT, sync=True)
    yield Finding(FINE, SUBJECT, "it answers, and the session is alive")
    members = [each.strip() for each in examined.conf.zookeeper.hosts.partition("/")[0].split(",")]
    if len(members) == 1:
        yield Finding("zookeeper-alone", members[0], f"[zookeeper] hosts names one server, {members[0]}")
    else:
        yield from filter(None, map(_member, members))
    yield from _access(examined.session)


def _plain(examined: Examined) -> Iterator[Finding]:
    with contextlib.suppress(Refused):  # the check of the certificate reports one that cannot be used
        if examined.conf.zookeeper.tls is False and certificates.load(examined.conf) is not None:
            yield Finding("zookeeper-plain", SUBJECT, f"[zookeeper] tls is false for {examined.conf.zookeeper.hosts}")


def _member(member: str) -> Finding | None:
    host, port = _address(member)
    try:
        socket.create_connection((host, port), timeout=PATIENCE).close()
    except OSError as error:
        return Finding("zookeeper-member-away", member, f"{member} cannot be reached: {error.strerror or error}")
    return None


def _address(member: str) -> tuple[str, int]:
    found = re.fullmatch(r"(.+):(\d+)", member)
    return (found[1].strip("[]"), int(found[2])) if found else (member, PORT)


def _access(session: Coordination) -> Iterator[Finding]:
    try:
        lists, _stat = session.client.get_acls(ROOT)
    except exceptions.NoNodeError:
        return
    if any(each.id.scheme == "world" and each.perms & ~1 for each in lists):
        yield Finding("zookeeper-open", ROOT, f"everybody may write below {ROOT}")
