"""Placement, Neutron and Cinder, and the Keystone that lets in: whether they answer what moves ask of them."""

from __future__ import annotations

from collections.abc import Iterator

from droveway.conf.services import GROUPS
from droveway.doctor.findings import FINE, Around, Finding
from droveway.errors import DrovewayError


def check(around: Around) -> Iterator[Finding]:
    """Each service, asked one question that changes nothing, at the microversion that moves use."""
    for group in GROUPS:
        try:
            around.site.services.require_answer(group)
        except DrovewayError as error:
            yield Finding("service-away", group, str(error))
        else:
            yield Finding(FINE, group, "it answers")
