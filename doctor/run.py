"""Runs every check; one that breaks ends itself alone."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from droveway.clients import access, zookeeper
from droveway.doctor import certificate, configuration, databases, ensemble, flows, host, services, workers
from droveway.doctor.findings import Around, Finding, Level
from droveway.engines.site.installation import Installation
from droveway.errors import CoordinationLost, Refused

if TYPE_CHECKING:
    from oslo_config import cfg

Check = Callable[[Around], Iterable[Finding]]

CHECKS: Final[tuple[Check, ...]] = (
    configuration.check,
    ensemble.check,
    databases.check,
    flows.check,
    services.check,
    certificate.check,
    workers.check,
    host.check,
)

UPGRADE: Final[tuple[Check, ...]] = (databases.check, flows.check, workers.check)
"""What tells whether conductors of this release can take over."""

EXITS: Final = {Level.OK: 0, Level.WARNING: 1, Level.FAILURE: 2}


def examine(conf: cfg.ConfigOpts, checks: Iterable[Check] = CHECKS) -> list[Finding]:
    """All that is found; ``conf`` is of `droveway.conf.settings.load_deployment`.  Nothing is changed."""
    with contextlib.ExitStack() as stack:
        site = Installation(conf)
        stack.callback(site.close)
        around = _around(conf, site)
        if around.session is not None:
            stack.callback(around.session.close)
        return [finding for check in checks for finding in _findings(check, around)]


def _around(conf: cfg.ConfigOpts, site: Installation) -> Around:
    """With a session as this machine's conductor has it, else as its worker, by what the certificate says."""
    try:
        protection, host = _protection(conf)
        hosts, timeout = conf.zookeeper.hosts, conf.zookeeper.session_timeout
        session = zookeeper.connect(hosts, timeout=timeout, protection=protection)
    except (CoordinationLost, Refused) as error:
        return Around(conf, site, None, error)
    return Around(conf, site, session, host=host)


def _protection(conf: cfg.ConfigOpts) -> tuple[access.Protection | None, str]:
    try:
        return access.protection(conf), ""
    except Refused:
        host = socket.gethostname()
        with contextlib.suppress(Refused):
            return access.protection(conf, host), host
        raise


def worst(findings: Iterable[Finding]) -> int:
    """The exit code that the findings amount to."""
    return max((EXITS[finding.level] for finding in findings), default=0)


def _findings(check: Check, around: Around) -> list[Finding]:
    found: list[Finding] = []
    try:
        found.extend(check(around))
    except Exception as error:  # noqa: BLE001 - it is told as a finding
        name = check.__module__.rpartition(".")[2]
        # An error that nobody foresaw may hold anything, a password too: only what kind it is of is told.
        found.append(Finding("check-broken", name, f"the check of {name} failed with {type(error).__name__}"))
    return found
