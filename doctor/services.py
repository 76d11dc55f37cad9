"""Checks that Placement, Neutron, Cinder and Glance answer what moves ask, and that Keystone gives a token for each."""

from __future__ import annotations

from collections.abc import Iterator

from droveway.clients.network import BINDING_EXTENDED
from droveway.conf.services import GROUPS, is_named
from droveway.doctor.findings import FINE, Examined, Finding
from droveway.errors import DrovewayError


def check(examined: Examined) -> Iterator[Finding]:
    """Ask each service what moves ask and what changes nothing, at the microversion that moves use."""
    for group in (each for each in GROUPS if is_named(examined.conf, each)):
        try:
            examined.site.services.require_answer(group)
            whole = group != "neutron" or examined.site.services.network.has_extension(BINDING_EXTENDED)
        except DrovewayError as error:
            yield Finding("service-away", group, str(error))
        else:
            yield Finding(FINE, group, "it answers")
            if not whole:
                yield Finding("extension-missing", group, f"it lacks the extension {BINDING_EXTENDED}")
