"""Keeps what a lab's Neutron knows of physical networks, QoS policies and the providers that its agents report.

It makes the ids of groups and providers as Neutron does. A changed policy changes the allocations of the port's server.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy import ForeignKey, bindparam, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from droveway.clients.embedded.services import Answer, Base, Binding, Port, RefusalError, Request, new_id
from droveway.clients.network import COMPUTE_OWNER
from droveway.clients.placement import ConsumerChanged, Placement
from droveway.clients.port_resources import ALLOCATION
from droveway.errors import StepError

EGRESS: Final = "NET_BW_EGR_KILOBIT_PER_SEC"
INGRESS: Final = "NET_BW_IGR_KILOBIT_PER_SEC"
PACKET_RATE: Final = "NET_PACKET_RATE_KILOPACKET_PER_SEC"
NORMAL_TRAIT: Final = "CUSTOM_VNIC_TYPE_NORMAL"
"""The trait of a provider that serves ports of vnic type normal."""
AGENT_TYPE: Final = "Open vSwitch agent"

_TUNNEL_TRAIT: Final = "CUSTOM_NETWORK_TUNNEL_PROVIDER"
_NAMESPACE: Final = uuid.UUID("87ee7d5c-73bb-11e8-9008-c4d987b2a692")
"""The namespace in which Neutron's openvswitch driver makes the ids of providers."""

_ROUNDS: Final = 10
"""How often the allocations are written before the change of a policy is refused."""

_BANDWIDTH: Final = "bandwidth"
_PACKETS: Final = "packets"
_CLASSES: Final = {
    (_BANDWIDTH, "egress"): EGRESS,
    (_BANDWIDTH, "ingress"): INGRESS,
    (_PACKETS, "any"): PACKET_RATE,
}


class NetworkRow(Base):
    """A network over a physical one."""

    __tablename__ = "networks"

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    physical_network: Mapped[str]


class PolicyRow(Base):
    """A QoS policy."""

    __tablename__ = "qos_policies"

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]


class RuleRow(Base):
    """A rule of a QoS policy: a least bandwidth in kbit/s, or a least packet rate in 1,000 packets a second."""

    __tablename__ = "qos_rules"

    id: Mapped[str] = mapped_column(primary_key=True)
    policy: Mapped[str] = mapped_column(ForeignKey("qos_policies.id", ondelete="CASCADE"), index=True)
    kind: Mapped[str]
    direction: Mapped[str]
    amount: Mapped[int]


class PortPolicy(Base):
    """The QoS policy of a port."""

    __tablename__ = "port_policies"

    port: Mapped[str] = mapped_column(ForeignKey("ports.id", ondelete="CASCADE"), primary_key=True)
    policy: Mapped[str] = mapped_column(ForeignKey("qos_policies.id"))
    legacy: Mapped[bool] = mapped_column(default=False)
    """Whether what the port asks for is shown in the legacy format: without port-resource-request-groups."""


class Device(Base):
    """A bridge of a host, or the host's network agent itself, whose name is empty; each may be a provider."""

    __tablename__ = "network_devices"

    host: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    physical_network: Mapped[str]
    reported: Mapped[bool]
    """Whether the agent reports the resources of this device, so that ports may use it as a provider."""


_RULES_OF: Final = select(RuleRow).where(RuleRow.policy == bindparam("policy")).order_by(RuleRow.kind, RuleRow.id)
_POLICY_OF: Final = select(PortPolicy).where(PortPolicy.port == bindparam("port"))
_DEVICES_OF: Final = select(Device).where(Device.host == bindparam("host"))
_NETWORK: Final = select(NetworkRow).where(NetworkRow.id == bindparam("id"))


def provider_of(host: str, bridge: str = "") -> str:
    """Return the id of the provider of a host's bridge, or of its agent, as Neutron makes it."""
    return str(uuid.uuid5(_NAMESPACE, f"{host}:{bridge}" if bridge else host))


def physical_trait(physical_network: str) -> str:
    """Return the trait of a provider that reaches the physical network."""
    from os_traits import normalize_name  # type: ignore[import-untyped]

    return str(normalize_name(f"PHYSNET_{physical_network}"))


def post_network(request: Request) -> Answer:
    """Make a network."""
    body = request.body["network"]
    row = NetworkRow(id=new_id(), name=body["name"], physical_network=body["provider:physical_network"])
    request.session.add(row)
    return Answer(201, {"network": {"id": row.id, "name": row.name}})


def networks(request: Request) -> Answer:
    """List the networks of a name."""
    found = request.session.scalars(select(NetworkRow).where(NetworkRow.name == request.params["name"]))
    return Answer(200, {"networks": [{"id": row.id, "name": row.name} for row in found]})


def post_policy(request: Request) -> Answer:
    """Make a QoS policy."""
    row = PolicyRow(id=new_id(), name=request.body["policy"]["name"])
    request.session.add(row)
    return Answer(201, {"policy": {"id": row.id, "name": row.name}})


def policies(request: Request) -> Answer:
    """List the QoS policies of a name."""
    found = request.session.scalars(select(PolicyRow).where(PolicyRow.name == request.params["name"]))
    return Answer(200, {"policies": [{"id": row.id, "name": row.name} for row in found]})


def post_bandwidth(request: Request) -> Answer:
    """Give a policy a least bandwidth."""
    return _post_rule(request, "minimum_bandwidth_rule", _BANDWIDTH, "min_kbps")


def post_packets(request: Request) -> Answer:
    """Give a policy a least packet rate."""
    return _post_rule(request, "minimum_packet_rate_rule", _PACKETS, "min_kpps")


def _post_rule(request: Request, noun: str, kind: str, amount: str) -> Answer:
    policy = request.find(PolicyRow, request.names["policy"])
    body = request.body[noun]
    if (kind, body["direction"]) not in _CLASSES:
        raise RefusalError(400, f"a {noun} has no direction {body['direction']}")
    row = RuleRow(id=new_id(), policy=policy.id, kind=kind, direction=body["direction"], amount=body[amount])
    request.session.add(row)
    return Answer(201, {noun: {"id": row.id, "direction": row.direction, amount: row.amount}})


def put_devices(request: Request, host: str) -> None:
    """Store the bridges that the host's agent reports, and the agent itself, as a heartbeat does."""
    for row in request.session.scalars(_DEVICES_OF, {"host": host}).all():
        request.session.delete(row)
    request.session.flush()
    for name, told in request.body.get("devices", {}).items():
        physical = told["physical_network"]
        request.session.add(Device(host=host, name=name, physical_network=physical, reported=told["reported"]))


def set_policy(session: Session, port: Port, policy: str | None) -> None:
    """Give the port this QoS policy, or none."""
    row = session.scalar(_POLICY_OF, {"port": port.id})
    if row is not None:
        session.delete(row)
        session.flush()
    if policy is not None:
        session.add(PortPolicy(port=port.id, policy=policy))


def change_policy(
    request: Request, placement: Placement, port: Port, active: Binding | None, policy: str | None
) -> None:
    """Give the port another QoS policy, or none, and change its server's allocations accordingly, as Neutron does.

    Only allocations of the providers that the profile of the active binding names are changed. Raises RefusalError, as
    Neutron refuses, if the server has no allocation of such a provider, or if the provider has not enough.
    """
    session = request.session
    old = resource_request(session, port)
    set_policy(session, port, policy)
    session.flush()
    named = {} if active is None else active.profile.get(ALLOCATION) or {}
    if active is None or not named or not old or not port.device_owner.startswith(COMPUTE_OWNER):
        return
    before, after = _by_kind(port, old), _by_kind(port, resource_request(session, port))
    if isinstance(named, str):
        named = dict.fromkeys((group["id"] for group in before.values()), named)
    givers = {kind: named[group["id"]] for kind, group in before.items() if group["id"] in named}
    changes: dict[str, dict[str, int]] = {}
    for kind, giver in givers.items():
        was, becomes = before[kind]["resources"], after.get(kind, {}).get("resources", {})
        amounts = changes.setdefault(giver, {})
        amounts |= {name: becomes.get(name, 0) - was.get(name, 0) for name in was | becomes}
    _hold(placement, port.server, changes)
    found: Any = {group["id"]: givers[kind] for kind, group in after.items() if kind in givers}
    if isinstance(active.profile[ALLOCATION], str):
        found = next(iter(found.values()), "")
    active.profile = {**active.profile, ALLOCATION: found}


def _by_kind(port: Port, told: Mapping[str, Any] | None) -> dict[bool, dict[str, Any]]:
    """Return the request groups of a port: under True the group of packet rates, under False that of bandwidth."""
    groups = (told or {}).get("request_groups") or ([{"id": port.id, **told}] if told else [])
    return {PACKET_RATE in group["resources"]: group for group in groups}


def _hold(placement: Placement, server: str, changes: Mapping[str, Mapping[str, int]]) -> None:
    """Add the changes (provider → class → amount) to the server's allocations; repeats it after another writer."""
    for _ in range(_ROUNDS):
        found = placement.allocations(server)
        held = {provider: dict(amounts) for provider, amounts in found.allocations.items()}
        if not held:
            raise RefusalError(400, f"Resource allocation is deleted for consumer {server}")
        for provider, amounts in changes.items():
            if provider not in held:
                raise RefusalError(400, f"Resource provider {provider} for {server} does not exist")
            for name, amount in amounts.items():
                held[provider][name] = held[provider].get(name, 0) + amount
        wanted = {
            provider: {"resources": {name: amount for name, amount in amounts.items() if amount > 0}}
            for provider, amounts in held.items()
        }
        request = {"allocations": {provider: given for provider, given in wanted.items() if given["resources"]}}
        try:
            placement.rewrite(
                {server: (found, request, found.consumer_type)}, project_id=found.project_id, user_id=found.user_id
            )
        except ConsumerChanged:
            continue
        except StepError as error:
            raise RefusalError(409, str(error)) from None
        return
    raise RefusalError(409, f"Resource allocation has been changed for consumer {server}")


def set_format(session: Session, port: Port, *, legacy: bool) -> None:
    """Set whether Neutron shows what the port asks for in the legacy format or in groups."""
    row = session.scalar(_POLICY_OF, {"port": port.id})
    if row is not None:
        row.legacy = legacy


def resource_request(session: Session, port: Port) -> dict[str, Any] | None:
    """Return what the port asks of Placement, as Neutron shows it."""
    its = session.scalar(_POLICY_OF, {"port": port.id})
    if its is None:
        return None
    rules = session.scalars(_RULES_OF, {"policy": its.policy}).all()
    groups = [
        _group(port, [rule for rule in rules if rule.kind == kind], traits)
        for kind, traits in ((_BANDWIDTH, [_network_trait(session, port), NORMAL_TRAIT]), (_PACKETS, [NORMAL_TRAIT]))
        if any(rule.kind == kind for rule in rules)
    ]
    if not groups:
        return None
    if its.legacy:
        return {name: groups[0][name] for name in ("resources", "required")}
    return {"request_groups": groups, "same_subtree": [group["id"] for group in groups]}


def serves(session: Session, port: Port, host: str, profile: dict[str, Any]) -> bool:
    """Say whether the host's agent can bind the port: it reaches the network and reports the profile's providers."""
    network = session.scalar(_NETWORK, {"id": port.network_id})
    named = profile.get("allocation")
    if network is None and not named:
        return True
    devices = session.scalars(_DEVICES_OF, {"host": host}).all()
    if network is not None and network.physical_network not in {device.physical_network for device in devices}:
        return False
    wanted = {named} if isinstance(named, str) else set((named or {}).values())
    return wanted <= {provider_of(host, device.name) for device in devices if device.reported}


def _group(port: Port, rules: list[RuleRow], traits: list[str]) -> dict[str, Any]:
    return {
        "id": str(uuid.uuid5(uuid.UUID(port.id), ":".join(rule.id for rule in rules))),
        "resources": {_CLASSES[rule.kind, rule.direction]: rule.amount for rule in rules},
        "required": traits,
    }


def _network_trait(session: Session, port: Port) -> str:
    network = session.scalar(_NETWORK, {"id": port.network_id})
    return _TUNNEL_TRAIT if network is None else physical_trait(network.physical_network)
