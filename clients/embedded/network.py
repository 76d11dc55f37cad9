"""Keeps the ports of a lab and their bindings, with the answers and refusals of Neutron's binding-extended."""

from __future__ import annotations

import functools
from typing import Any, Final

from sqlalchemy import Engine, bindparam, select
from sqlalchemy.orm import Mapped, mapped_column

from droveway.clients.embedded import guaranteed
from droveway.clients.embedded.services import (
    Answer,
    Base,
    Binding,
    Handler,
    LocalService,
    NetworkHost,
    Port,
    RefusalError,
    Request,
    new_id,
)
from droveway.clients.network import ACTIVE, BINDING_EXTENDED, INACTIVE, RESOURCE_REQUEST
from droveway.clients.placement import Placement


def network_service(engine: Engine, placement: Placement) -> LocalService:
    """Return the service; in ``placement`` it changes allocations when a QoS policy changes, as Neutron does.

    The service has three requests that Neutron lacks. `PUT /hosts/NAME` adds a host, as an agent does for Neutron.
    `PUT /ports/ID/format` makes the service show what a port asks for in the legacy format, as an old Neutron does.
    `PUT /extensions/NAME` takes an extension away.
    """
    return LocalService(
        engine,
        {
            ("PUT", "/hosts/{host}"): _put_host,
            ("GET", "/extensions/{name}"): _get_extension,
            ("PUT", "/extensions/{name}"): _put_extension,
            ("GET", "/networks"): guaranteed.networks,
            ("POST", "/networks"): guaranteed.post_network,
            ("GET", "/qos/policies"): guaranteed.policies,
            ("POST", "/qos/policies"): guaranteed.post_policy,
            ("POST", "/qos/policies/{policy}/minimum_bandwidth_rules"): guaranteed.post_bandwidth,
            ("POST", "/qos/policies/{policy}/minimum_packet_rate_rules"): guaranteed.post_packets,
            ("PUT", "/ports/{port}/format"): _put_format,
            ("GET", "/ports"): _ports,
            ("POST", "/ports"): _post_port,
            ("GET", "/ports/{port}"): _get_port,
            ("PUT", "/ports/{port}"): functools.partial(_put_port, placement),
            ("DELETE", "/ports/{port}"): _delete_port,
            ("GET", "/ports/{port}/bindings"): _extended(_bindings),
            ("POST", "/ports/{port}/bindings"): _extended(_post_binding),
            ("PUT", "/ports/{port}/bindings/{host}"): _extended(_put_binding),
            ("PUT", "/ports/{port}/bindings/{host}/activate"): _extended(_activate),
            ("DELETE", "/ports/{port}/bindings/{host}"): _extended(_delete_binding),
        },
    )


class MissingExtension(Base):
    """An extension that was taken away from this Neutron."""

    __tablename__ = "missing_extensions"

    name: Mapped[str] = mapped_column(primary_key=True)


_EXTENSIONS: Final = frozenset({BINDING_EXTENDED, RESOURCE_REQUEST})
_MISSING: Final = select(MissingExtension).where(MissingExtension.name == bindparam("name"))
_PORTS: Final = select(Port)
_PORTS_OF: Final = _PORTS.where(Port.server == bindparam("server"))
_BINDINGS_OF: Final = select(Binding).where(Binding.port == bindparam("port")).order_by(Binding.host)

_WRITABLE: Final = {"device_owner": "device_owner", "device_id": "server"}


def _get_extension(request: Request) -> Answer:
    name = request.names["name"]
    if name not in _EXTENSIONS or _lacks(request, name):
        raise RefusalError(404, f"Extension with alias {name} does not exist")
    return Answer(200, {"extension": {"alias": name}})


def _put_extension(request: Request) -> Answer:
    row = request.session.merge(MissingExtension(name=request.names["name"]))
    if not request.body["missing"]:
        request.session.flush()
        request.session.delete(row)
    return Answer(200, {})


def _lacks(request: Request, name: str) -> bool:
    return request.session.scalar(_MISSING, {"name": name}) is not None


def _extended(handler: Handler) -> Handler:
    """Return a handler that answers 404 while the extension is missing, as Neutron does; else it calls ``handler``."""

    def handle(request: Request) -> Answer:
        if _lacks(request, BINDING_EXTENDED):
            raise RefusalError(404, "The resource could not be found.")
        return handler(request)

    return handle


def _put_host(request: Request) -> Answer:
    request.session.merge(NetworkHost(name=request.names["host"]))
    guaranteed.put_devices(request, request.names["host"])
    return Answer(200, {})


def _ports(request: Request) -> Answer:
    server = request.params.get("device_id")
    found = request.session.scalars(_PORTS if server is None else _PORTS_OF, {"server": server})
    limit = request.params.get("limit")
    ports = found.all() if limit is None else found.fetchmany(int(limit))
    return Answer(200, {"ports": [_port_view(request, port) for port in ports]})


def _post_port(request: Request) -> Answer:
    body = request.body["port"]
    port = Port(
        id=new_id(),
        mac=body["mac_address"],
        server=body["device_id"],
        network_id=body["network_id"],
        device_owner=body.get("device_owner", ""),
    )
    taken = select(Port).where(Port.mac == port.mac, Port.network_id == port.network_id)
    if request.session.scalars(taken).first():
        raise RefusalError(409, f"the MAC address {port.mac} is in use")
    request.session.add(port)
    request.session.flush()
    guaranteed.set_policy(request.session, port, body.get("qos_policy_id"))
    if body.get("binding:host_id"):
        _bind(request, port, body["binding:host_id"], body.get("binding:profile") or {})
    else:
        request.session.add(Binding(port=port.id, host="", status=ACTIVE, profile={}))
    return Answer(201, {"port": _port_view(request, port)})


def _get_port(request: Request) -> Answer:
    return Answer(200, {"port": _port_view(request, _port(request))})


def _put_port(placement: Placement, request: Request) -> Answer:
    port = _port(request)
    wanted = request.headers.get("If-Match", "").removeprefix("revision_number=")
    if wanted and int(wanted) != port.revision:
        raise RefusalError(412, f"the port {port.id} is at revision {port.revision}")
    body = dict(request.body["port"])
    if "qos_policy_id" in body:
        active = next((each for each in _bindings_of(request, port) if each.status == ACTIVE), None)
        guaranteed.change_policy(request, placement, port, active, body.pop("qos_policy_id"))
    if "binding:host_id" in body:
        _bind_anew(request, port, body.pop("binding:host_id") or "", body.pop("binding:profile", None))
    elif "binding:profile" in body:
        _active(request, port).profile = body.pop("binding:profile")
    for name, value in body.items():
        setattr(port, _WRITABLE[name], value)
    port.revision += 1
    return Answer(200, {"port": _port_view(request, port)})


def _put_format(request: Request) -> Answer:
    port = _port(request)
    guaranteed.set_format(request.session, port, legacy=request.body["legacy"])
    return Answer(200, {})


def _delete_port(request: Request) -> Answer:
    request.session.delete(_port(request))
    return Answer(204)


def _bindings(request: Request) -> Answer:
    port = _port(request)
    return Answer(200, {"bindings": [_binding_view(request, port, binding) for binding in _bindings_of(request, port)]})


def _post_binding(request: Request) -> Answer:
    name = request.names["port"]
    port = request.session.get(Port, name)
    if port is None:
        # Neutron answers 500 here, by a defect.
        raise RefusalError(500, f"the port {name} could not be found", kind="HTTPInternalServerError")
    body = request.body["binding"]
    binding = _bind(request, port, body["host"], body.get("profile") or {})
    port.revision += 1
    return Answer(201, {"binding": _binding_view(request, port, binding)})


def _put_binding(request: Request) -> Answer:
    port, binding = _port(request), _binding(request)
    profile = request.body["binding"]["profile"]
    binding.profile = profile
    port.revision += 1
    # Neutron checks the active binding alone, and keeps a binding that failed.
    if binding.status == ACTIVE and not _serves(request, port, binding.host, profile):
        refusal = _refusal(port, binding.host)
        return Answer(refusal.status, refusal.body())
    return Answer(200, {"binding": _binding_view(request, port, binding)})


def _activate(request: Request) -> Answer:
    port = _port(request)
    binding = _binding(request)
    if binding.status == ACTIVE:
        raise RefusalError(409, f"the binding of port {port.id} on {binding.host} is active already")
    for other in _bindings_of(request, port):
        other.status = ACTIVE if other.host == binding.host else INACTIVE
    port.revision += 1
    return Answer(200, {"binding": _binding_view(request, port, binding)})


def _delete_binding(request: Request) -> Answer:
    request.session.delete(_binding(request))
    _port(request).revision += 1
    return Answer(204)


def _port(request: Request) -> Port:
    return request.find(Port, request.names["port"])


def _binding(request: Request) -> Binding:
    _port(request)
    return request.find(Binding, (request.names["port"], request.names["host"]))


def _bindings_of(request: Request, port: Port) -> list[Binding]:
    return list(request.session.scalars(_BINDINGS_OF, {"port": port.id}))


def _bind(request: Request, port: Port, host: str, profile: dict[str, Any]) -> Binding:
    present = _bindings_of(request, port)
    if host in {binding.host for binding in present}:
        raise RefusalError(409, f"a binding of port {port.id} on {host} exists already")
    if not _serves(request, port, host, profile):
        raise _refusal(port, host)
    status = INACTIVE if any(binding.status == ACTIVE for binding in present) else ACTIVE
    binding = Binding(port=port.id, host=host, status=status, profile=profile)
    request.session.add(binding)
    return binding


def _refusal(port: Port, host: str) -> RefusalError:
    return RefusalError(
        500, f"binding the port {port.id} on {host} failed: no agent serves it there", kind="PortBindingError"
    )


def _bind_anew(request: Request, port: Port, host: str, profile: dict[str, Any] | None) -> None:
    """Move the active binding to this host, or to none.

    On a host without an agent the request succeeds, and the port shows that its binding has failed. ``profile``: None
    keeps the present one.
    """
    active = _active(request, port)
    if any(other.host == host for other in _bindings_of(request, port) if other is not active):
        raise RefusalError(500, "Request Failed: internal server error while processing your request.")
    kept = active.profile if profile is None else profile
    request.session.delete(active)
    request.session.flush()
    request.session.add(Binding(port=port.id, host=host, status=ACTIVE, profile=kept))


def _active(request: Request, port: Port) -> Binding:
    """Return the port's active binding; an unbound port has an active binding without a host."""
    for binding in _bindings_of(request, port):
        if binding.status == ACTIVE:
            return binding
    raise RefusalError(400, f"the port {port.id} has no active binding")


def _serves(request: Request, port: Port, host: str, profile: dict[str, Any]) -> bool:
    known = request.session.get(NetworkHost, host) is not None
    return known and guaranteed.serves(request.session, port, host, profile)


def _vif_type(request: Request, port: Port, binding: Binding) -> str:
    if not binding.host:
        return "unbound"
    if binding.status != ACTIVE:
        return "ovs"
    return "ovs" if _serves(request, port, binding.host, binding.profile) else "binding_failed"


def _port_view(request: Request, port: Port) -> dict[str, Any]:
    request.session.flush()
    view = {
        "id": port.id,
        "mac_address": port.mac,
        "device_id": port.server,
        "device_owner": port.device_owner,
        "network_id": port.network_id,
        "revision_number": port.revision,
    }
    if not _lacks(request, RESOURCE_REQUEST):
        view["resource_request"] = guaranteed.resource_request(request.session, port)
    # As in Neutron, a port without an active binding shows no key that begins with binding.
    for binding in _bindings_of(request, port):
        if binding.status == ACTIVE:
            view |= {
                "binding:host_id": binding.host,
                "binding:profile": binding.profile,
                "binding:vif_type": _vif_type(request, port, binding),
                "binding:vnic_type": "normal",
            }
    return view


def _binding_view(request: Request, port: Port, binding: Binding) -> dict[str, Any]:
    return {
        "host": binding.host,
        "status": binding.status,
        "profile": binding.profile,
        "vif_type": _vif_type(request, port, binding),
        "vnic_type": "normal",
    }
