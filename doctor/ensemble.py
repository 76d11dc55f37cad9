"""ZooKeeper: whether it answers, how it is built, and who may write there."""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Iterator
from typing import Final

from kazoo import exceptions

from droveway import certificates
from droveway.clients.zookeeper import ROOT, Coordination
from droveway.doctor.findings import FINE, Around, Finding
from droveway.errors import Refused

SUBJECT: Final = "zookeeper"
PATIENCE: Final = 3.0
"""Seconds that one server has to answer."""
PORT: Final = 2181


def check(around: Around) -> Iterator[Finding]:
    """How it is spoken to, the ensemble as a whole, each of its servers, and the access list of Droveway's root."""
    yield from _plain(around)
    if around.session is None:
        refused = isinstance(around.why, Refused)
        yield Finding("zookeeper-refused" if refused else "zookeeper-away", SUBJECT, str(around.why))
        return
    around.session.get(ROOT, sync=True)
    yield Finding(FINE, SUBJECT, "it answers, and the session is alive")
    members = [each.strip() for each in around.conf.zookeeper.hosts.partition("/")[0].split(",")]
    if len(members) == 1:
        yield Finding("zookeeper-alone", members[0], f"[zookeeper] hosts names one server, {members[0]}")
    else:
        yield from filter(None, map(_member, members))
    yield from _access(around.session)


def _plain(around: Around) -> Iterator[Finding]:
    with contextlib.suppress(Refused):  # of a certificate that cannot be used, which its own check tells
        if around.conf.zookeeper.tls is False and certificates.load(around.conf) is not None:
            yield Finding("zookeeper-plain", SUBJECT, f"[zookeeper] tls is false for {around.conf.zookeeper.hosts}")


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
