"""Runs every check; a check that breaks does not end the others."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from droveway.clients import access, zookeeper
from droveway.doctor import certificate, configuration, databases, ensemble, flows, host, services, workers
from droveway.doctor.findings import Examined, Finding, Level
from droveway.engines.site.installation import Installation
from droveway.errors import CoordinationLost, Refused

if TYPE_CHECKING:
    from oslo_config import cfg

Check = Callable[[Examined], Iterable[Finding]]

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
"""The checks that say whether conductors of this release can take over."""

EXITS: Final = {Level.OK: 0, Level.WARNING: 1, Level.FAILURE: 2}


def examine(conf: cfg.ConfigOpts, checks: Iterable[Check] = CHECKS) -> list[Finding]:
    """Return all findings of the checks; nothing is changed.

    ``conf`` comes from `droveway.conf.settings.load_deployment`.
    """
    with contextlib.ExitStack() as stack:
        site = Installation(conf)
        stack.callback(site.close)
        examined = _examined(conf, site)
        if examined.session is not None:
            stack.callback(examined.session.close)
        return [finding for check in checks for finding in _findings(check, examined)]


def _examined(conf: cfg.ConfigOpts, site: Installation) -> Examined:
    """Open a session with ZooKeeper: as a conductor if the certificate is a conductor's, else as this host's worker.

    Where there is no session, the result has the error instead.
    """
    try:
        protection, host = _protection(conf)
        hosts, timeout = conf.zookeeper.hosts, conf.zookeeper.session_timeout
        session = zookeeper.connect(hosts, timeout=timeout, protection=protection)
    except (CoordinationLost, Refused) as error:
        return Examined(conf, site, None, error)
    return Examined(conf, site, session, host=host)


def _protection(conf: cfg.ConfigOpts) -> tuple[access.Protection | None, str]:
    try:
        return access.protection(conf), ""
    except Refused:
        host = socket.gethostname()
        with contextlib.suppress(Refused):
            return access.protection(conf, host), host
        raise


def worst(findings: Iterable[Finding]) -> int:
    """Return the exit code for the findings: that of the worst one."""
    return max((EXITS[finding.level] for finding in findings), default=0)


def _findings(check: Check, examined: Examined) -> list[Finding]:
    found: list[Finding] = []
    try:
        found.extend(check(examined))
    except Exception as error:  # noqa: BLE001 - it becomes a finding
        name = check.__module__.rpartition(".")[2]
        # An unexpected error may quote a password, so the finding names only its type.
        found.append(Finding("check-broken", name, f"the check of {name} failed with {type(error).__name__}"))
    return found
