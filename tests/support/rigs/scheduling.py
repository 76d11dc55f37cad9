"""Requests, hosts and offers for tests of the choice of a destination."""

from __future__ import annotations

from typing import Any

from droveway.clients.placement import Candidate
from droveway.scheduler.hosts import HostState
from droveway.scheduler.requests import MoveRequest
from droveway.scheduler.select import Selection

GROUP = "99999999-9999-4999-8999-999999999999"


def packed(name: str, data: dict[str, Any]) -> dict[str, Any]:
    return {
        "nova_object.name": name,
        "nova_object.namespace": "nova",
        "nova_object.version": "1.0",
        "nova_object.data": data,
    }


def group(policy: str, **rules: int) -> dict[str, Any]:
    return packed("InstanceGroup", {"uuid": GROUP, "policy": policy, "_rules": rules, "members": None})


def request(
    *,
    extra_specs: dict[str, str] | None = None,
    flavor: dict[str, Any] | None = None,
    spec: dict[str, Any] | None = None,
    **fields: Any,
) -> MoveRequest:
    known: dict[str, Any] = {
        "server": "s1",
        "name": "web",
        "kind": "migrate",
        "source_cell": "cell1",
        "cells": {"cell1": ""},
        "source_host": "host1",
        "boot_from_volume": False,
    }
    small = {"vcpus": 2, "memory_mb": 512, "root_gb": 10, "ephemeral_gb": 0, "swap": 0}
    return MoveRequest(
        flavor={**small, "extra_specs": extra_specs or {}, **(flavor or {})},
        request_spec=packed("RequestSpec", {"availability_zone": None, "instance_group": None, **(spec or {})}),
        **known | fields,
    )


def state(name: str, **fields: Any) -> HostState:
    known: dict[str, Any] = {"host": name, "cell": "cell1", "node": f"{name}.node", "provider": f"p-{name}"}
    return HostState(**known | fields)


def offer(name: str, *, used: int = 0, capacity: int = 100, number: int = 0) -> Candidate:
    provider = f"p-{name}"
    room = {"capacity": capacity, "used": used}
    return Candidate(
        provider,
        {"allocations": {provider: {"resources": {"VCPU": 2}}}, "mappings": {"": [provider]}, "number": number},
        {provider: {"resources": {"VCPU": room, "MEMORY_MB": room, "DISK_GB": room}, "traits": []}},
    )


def names(selection: Selection) -> list[str]:
    return [destination.host for destination in selection.chosen]
