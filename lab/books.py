"""Audits a lab: compares the books, which are its databases and services, with each other and with its hosts."""

from __future__ import annotations

from droveway.audit import run
from droveway.audit.findings import Report
from droveway.audit.read import hosts as read_hosts
from droveway.audit.sources import Sources
from droveway.lab.parts import Parts


def balance(lab: Parts) -> Report:
    """Audit the lab and return what does not fit together; nothing is changed.

    `droveway audit` says that the books balance when the report has no findings.
    """
    return run.audit(sources(lab))


def sources(lab: Parts) -> Sources:
    """Return all that an audit of the lab reads."""
    return Sources(
        api=lab.api,
        cells=lab.cells,
        journal=lab.journal,
        cloud=lab.cloud,
        read_hosts=lambda: read_hosts.read({host: lab.hypervisor(host) for host in lab.identity.hosts}),
        guests_log=lab.layout.guests_log if lab.identity.hypervisor == "sandbox" else None,
    )
