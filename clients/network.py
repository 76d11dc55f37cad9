"""Speaks to Neutron: a server's ports and their bindings to hosts (extension binding-extended).

The session's user needs two roles. Without the role ``service`` Neutron refuses requests for bindings. Without the role
``admin`` it answers, but leaves out what ports ask of Placement.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from droveway.clients.port_resources import ALLOCATION, PortResources, asked_by
from droveway.clients.rest import CONFLICT, NOT_FOUND, Adapter, Rest, TryAgainError, detail_of
from droveway.errors import DestinationFault, StepError

ACTIVE: Final = "ACTIVE"
INACTIVE: Final = "INACTIVE"
COMPUTE_OWNER: Final = "compute:"
"""The beginning of the device_owner of a server's port; the zone of the server's host follows."""
NORMAL: Final = "normal"
"""The vnic type of a port that any host can plug into its switch."""

DEVICE_KEYS: Final = frozenset({
    ALLOCATION, "arq_uuid", "card_serial_number", "device_mac_address", "pci_slot", "pci_vendor_info",
    "pf_mac_address", "physical_network", "vf_num",
})  # fmt: skip
"""The keys of a binding's profile for a device of the host; Nova removes them when it unbinds a port."""

_PROFILE: Final = "binding:profile"
_REQUEST: Final = "resource_request"
_FORBIDDEN: Final = 403
_NO_PORT: Final = "00000000-0000-0000-0000-000000000000"
"""No port has this id."""
_STALE: Final = 412
_FAILED: Final = "binding_failed"
_BINDING_REFUSED: Final = 500
_REFUSAL: Final = "PortBindingError"
"""The type of Neutron's error when it cannot bind a port to a host."""

BINDING_EXTENDED: Final = "binding-extended"
"""Neutron's extension by which a port may be bound to two hosts at once."""
RESOURCE_REQUEST: Final = "port-resource-request"
"""Neutron's extension that shows what ports ask of Placement."""


@dataclass(frozen=True)
class Port:
    """A port as Neutron lists it; ``host`` is the host of its active binding, empty when it is unbound."""

    id: str
    mac: str
    host: str
    profile: dict[str, Any]
    """The profile of the active binding."""
    device_owner: str
    server: str
    vnic_type: str = NORMAL
    resources: PortResources | None = None
    """What the port asks of Placement, such as bandwidth. Neutron shows it to an admin alone."""
    tells_request: bool = True
    """Whether Neutron shows ``resources`` at all, which needs the extension port-resource-request."""


@dataclass(frozen=True, kw_only=True)
class PortRecord(Port):
    """A port with all of its bindings. Neutron shows these by one request for each port."""

    bindings: dict[str, str]
    """Maps each host that it is bound to, to ACTIVE or INACTIVE."""


class Network:
    """The client of Neutron; ``adapter`` is `droveway.clients.sessions.Neutron` or the embedded service.

    Every method that a move uses may be repeated. All raise `droveway.errors.StepError`, with the codes
    ``network-unavailable`` and ``network-failed``.
    """

    def __init__(
        self, adapter: Adapter, *, on_request: Callable[[str, str], None] | None = None, user: str = "of the session"
    ) -> None:
        """Take ``user`` for error messages about missing roles; it follows the words "the user"."""
        self._rest = Rest(adapter, "network", on_request)
        self._user = user

    def listed_ports(self, server: str) -> list[Port]:
        """Return the server's ports without their bindings, sorted by id."""
        return sorted((_port(row) for row in self._rows(device_id=server)), key=lambda port: port.id)

    def ports(self, server: str) -> list[PortRecord]:
        """Return the server's ports with their bindings, sorted by id."""
        return sorted((self._record(row) for row in self._rows(device_id=server)), key=lambda port: port.id)

    def all_ports(self) -> list[PortRecord]:
        """Return every port of the cloud with its bindings, sorted by id; the audit needs them."""
        return sorted((self._record(row) for row in self._rows()), key=lambda port: port.id)

    def require_roles(self) -> None:
        """Raise `droveway.errors.StepError` when the session's user lacks a role; nothing is changed.

        A missing role ``admin`` can only be seen in a port. A cloud without ports does not show it.
        """
        self._rows(limit="1")
        self.require_service()

    def require_service(self) -> None:
        """Raise `droveway.errors.StepError` when the session's user lacks the role ``service``; nothing is changed.

        The request is for a port that does not exist. Neutron checks the role first, and then refuses or fails.
        """
        path, body = f"/ports/{_NO_PORT}/bindings", {"binding": {"host": "nowhere"}}
        refused = (_BINDING_REFUSED,)
        response = self._rest.repeat(lambda: self._rest.send("POST", path, json=body, final=refused))
        if response.status_code == _FORBIDDEN:
            raise self._lacks("service", f"refuses to bind ports ({detail_of(response)})")

    def has_extension(self, name: str) -> bool:
        """Say whether Neutron has the extension."""
        path = f"/extensions/{name}"
        response = self._rest.repeat(lambda: self._rest.send("GET", path))
        return response.status_code != NOT_FOUND and bool(self._rest.done("GET", path, response))

    def ensure_binding(self, port: str, host: str, profile: Mapping[str, Any]) -> None:
        """Bind the port to the host; the new binding is INACTIVE while another host has the active one.

        If the port is bound to the host already, that binding stays. It keeps its own profile, except in two cases: its
        own profile names other providers than ``profile``, or it names the same providers and the binding has failed.
        In these cases it gets ``profile``.
        Raises `droveway.errors.DestinationFault` ``binding-refused`` when Neutron cannot bind ports on that host.
        """

        def bind() -> None:
            if self._make(port, host, profile):
                return
            found = self._row_on(port, host)
            if found is None:
                raise TryAgainError(f"the binding of port {port} on {host} went away meanwhile")
            self._renew_profile(port, found, profile)

        self._rest.repeat(bind)

    def bring(self, port: str, host: str, profile: Mapping[str, Any], *, device_owner: str, owned_by: str) -> None:
        """Bind the port to the host as `ensure_binding` does, and make that binding active as `activate` does.

        ``owned_by`` is the device_owner with which the port was listed. This method reads the port's bindings once; the
        other two methods together read them twice.
        """

        def bring() -> None:
            found = self._row_on(port, host)
            if found is None:
                self._make(port, host, profile)
            else:
                self._renew_profile(port, found, profile)
            if found is None or found["status"] != ACTIVE:
                self._activate_once(port, host)
            if owned_by != device_owner:
                self._own(port, device_owner)

        self._rest.repeat(bring)

    def activate(self, port: str, host: str, *, device_owner: str) -> None:
        """Make the host's binding the active one, which turns the other INACTIVE, and set ``compute:ZONE`` as owner.

        Raises `droveway.errors.StepError` ``binding-missing`` when the port is not bound to the host at all.
        """

        def switch() -> None:
            bindings = self._bindings(port)
            if host not in bindings:
                raise StepError(
                    f"the port {port} has no binding on {host} that could be activated: run droveway audit",
                    code="binding-missing",
                    host=host,
                )
            if bindings[host] != ACTIVE:
                self._activate_once(port, host)
            self._own(port, device_owner)

        self._rest.repeat(switch)

    def delete_binding(self, port: str, host: str) -> None:
        """Delete the port's binding to the host; nothing is done when the binding, or the port, does not exist.

        A port whose active binding is deleted is unbound.
        """
        self._delete(f"/ports/{port}/bindings/{host}")

    def bind(self, port: str, host: str, *, profile: Mapping[str, Any], device_owner: str) -> None:
        """Bind an unbound port to the host; nothing is done when it is bound there with this profile and owner.

        Raises `droveway.errors.DestinationFault` ``binding-refused`` when Neutron cannot bind ports on that host.
        """
        wanted = {"binding:host_id": host, "binding:profile": dict(profile), "device_owner": device_owner}
        self._require_bound(self._put(port, wanted))

    def set_profile(self, port: str, profile: Mapping[str, Any]) -> None:
        """Give the port's active binding this profile, and leave it where it is.

        Raises `droveway.errors.DestinationFault` ``binding-refused`` when Neutron cannot bind the port with it.
        """
        self._require_bound(self._put(port, {"binding:profile": dict(profile)}))

    def _require_bound(self, row: Mapping[str, Any]) -> None:
        """Raise DestinationFault for a port whose binding has failed, for which Neutron answers 200."""
        if row.get("binding:vif_type") == _FAILED:
            host = str(row["binding:host_id"])
            raise DestinationFault(
                f"Neutron could not bind the port {row['id']} on {host}", code="binding-refused", host=host
            )

    def unbind(self, port: str, *, profile: Mapping[str, Any]) -> None:
        """Unbind the port and give it this profile; it stays its server's. Nothing is done when it does not exist."""
        self._put(port, {"binding:host_id": "", "binding:profile": dict(profile)}, may_be_gone=True)

    def create_port(
        self,
        server: str,
        *,
        mac: str,
        network_id: str,
        host: str,
        device_owner: str = "compute:nova",
        policy: str | None = None,
    ) -> str:
        """Make a port of the server, for a lab, and return its id.

        It is bound to the host unless that is empty; ``policy`` is the id of its QoS policy.
        """
        port = {
            "device_id": server,
            "mac_address": mac,
            "network_id": network_id,
            "device_owner": device_owner,
            **({"binding:host_id": host} if host else {}),
            **({"qos_policy_id": policy} if policy else {}),
        }
        return self._create("port", "/ports", port)

    def create_network(self, name: str, physical_network: str) -> str:
        """Make a flat network over a physical one, for a lab, and return its id."""
        kind = {"provider:network_type": "flat", "provider:physical_network": physical_network}
        return self._create("network", "/networks", {"name": name, **kind})

    def create_policy(self, name: str) -> str:
        """Make a QoS policy without rules, for a lab, and return its id."""
        return self._create("policy", "/qos/policies", {"name": name})

    def guarantee(self, policy: str, *, egress_kbps: int = 0, ingress_kbps: int = 0, kpps: int = 0) -> None:
        """Give a new policy its rules, for a lab: least bandwidths and packet rate (1,000 packets a second)."""
        path = f"/qos/policies/{policy}"
        for direction, amount in (("egress", egress_kbps), ("ingress", ingress_kbps)):
            if amount:
                rule = {"direction": direction, "min_kbps": amount}
                self._create("minimum_bandwidth_rule", f"{path}/minimum_bandwidth_rules", rule)
        if kpps:
            rule = {"direction": "any", "min_kpps": kpps}
            self._create("minimum_packet_rate_rule", f"{path}/minimum_packet_rate_rules", rule)

    def named(self, what: str, name: str) -> str | None:
        """Return the id of the network (``/networks``) or QoS policy (``/qos/policies``) of this name, or None."""
        rows = self._rest.get(what, params={"name": name})[what.rpartition("/")[2]]
        return str(rows[0]["id"]) if rows else None

    def delete_port(self, port: str) -> None:
        """Delete the port; nothing is done when it does not exist."""
        self._delete(f"/ports/{port}")

    def _make(self, port: str, host: str, profile: Mapping[str, Any]) -> bool:
        """Make a binding, and say whether there was none before."""
        body = {"host": host, "vnic_type": NORMAL, "profile": dict(profile)}
        return self._bind_once("POST", f"/ports/{port}/bindings", port, host, body)

    def _renew_profile(self, port: str, found: Mapping[str, Any], profile: Mapping[str, Any]) -> None:
        """Replace the profile of an existing binding, unless the binding names the right providers (see `_names`)."""
        if not _names(found, profile):
            host = str(found["host"])
            self._bind_once("PUT", f"/ports/{port}/bindings/{host}", port, host, {"profile": dict(profile)})

    def _activate_once(self, port: str, host: str) -> None:
        path = f"/ports/{port}/bindings/{host}/activate"
        response = self._rest.send("PUT", path)
        if response.status_code != CONFLICT:
            self._done("PUT", path, response)

    def _bind_once(self, method: str, path: str, port: str, host: str, body: dict[str, Any]) -> bool:
        """Send a binding, and say whether Neutron accepted it; Neutron changes nothing after a conflict.

        If Neutron refuses the binding, the port's present binding on the host is read. An earlier try may have made it:
        if it names the right providers (see `_names`), it counts as accepted. Otherwise
        `droveway.errors.DestinationFault` is raised. Raises `droveway.clients.rest.TryAgainError` when Neutron itself
        failed.
        """
        response = self._rest.send(method, path, json={"binding": body}, final=(_BINDING_REFUSED,))
        if response.status_code == _BINDING_REFUSED:
            # Neutron answers 500 for a port that does not exist as well. For that `_row_on` raises the error.
            found = self._row_on(port, host)
            if not _is_refused_binding(response):
                raise TryAgainError(f"HTTP {response.status_code}: {detail_of(response)}")
            if found is None or not _names(found, body["profile"]):
                raise DestinationFault(
                    f"Neutron refused to bind the port {port} on {host}: {detail_of(response)}",
                    code="binding-refused",
                    host=host,
                )
        elif response.status_code != CONFLICT:
            self._done(method, path, response)
        return bool(response.status_code != CONFLICT)

    def _done(self, method: str, path: str, response: Any) -> Any:
        """Return the response; raises StepError for a refusal, or when the role ``service`` is missing."""
        if response.status_code == _FORBIDDEN:
            raise self._lacks("service", f"answered {response.status_code} to {method} {path} ({detail_of(response)})")
        return self._rest.done(method, path, response)

    def _put(self, port: str, wanted: Mapping[str, Any], *, may_be_gone: bool = False) -> dict[str, Any]:
        """Set these values of the port in one request, and return the port as Neutron shows it then."""
        return self._rest.repeat(lambda: self._put_once(port, wanted, may_be_gone=may_be_gone))

    def _put_once(self, port: str, wanted: Mapping[str, Any], *, may_be_gone: bool = False) -> dict[str, Any]:
        path = f"/ports/{port}"
        found = self._rest.send("GET", path)
        if may_be_gone and found.status_code == NOT_FOUND:
            return {}
        row: dict[str, Any] = self._rest.done("GET", path, found).json()["port"]
        if all((row.get(name) or "") == (value or "") for name, value in wanted.items()):
            return row
        revision = {"If-Match": f"revision_number={row['revision_number']}"}
        response = self._rest.send("PUT", path, json={"port": dict(wanted)}, headers=revision)
        if response.status_code == _STALE:
            raise TryAgainError(detail_of(response))
        changed: dict[str, Any] = self._done("PUT", path, response).json()["port"]
        return changed

    def _create(self, noun: str, path: str, body: Mapping[str, Any]) -> str:
        response = self._rest.repeat(lambda: self._rest.send("POST", path, json={noun: dict(body)}))
        return str(self._rest.done("POST", path, response).json()[noun]["id"])

    def _delete(self, path: str) -> None:
        response = self._rest.repeat(lambda: self._rest.send("DELETE", path))
        if response.status_code != NOT_FOUND:
            self._done("DELETE", path, response)

    def _bindings(self, port: str) -> dict[str, str]:
        return {row["host"]: row["status"] for row in self._binding_rows(port)}

    def _row_on(self, port: str, host: str) -> dict[str, Any] | None:
        return next((row for row in self._binding_rows(port) if row["host"] == host), None)

    def _binding_rows(self, port: str) -> list[dict[str, Any]]:
        path = f"/ports/{port}/bindings"
        response = self._rest.repeat(lambda: self._rest.send("GET", path))
        # The binding of an unbound port has no host.
        return [row for row in self._done("GET", path, response).json()["bindings"] if row["host"]]

    def _own(self, port: str, device_owner: str) -> None:
        self._put_once(port, {"device_owner": device_owner})

    def _rows(self, **params: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._rest.get("/ports", params=params)["ports"]
        for row in found:
            # Neutron shows no profile for a port without an active binding.
            if _PROFILE not in row and ACTIVE in self._bindings(row["id"]).values():
                raise self._lacks("service", f"does not show the {_PROFILE} of port {row['id']}")
            # A port that asks for nothing has the key with the value null.
            if _REQUEST not in row and self.has_extension(RESOURCE_REQUEST):
                raise self._lacks("admin", f"does not show the {_REQUEST} of port {row['id']}")
        return found

    def _lacks(self, role: str, shown: str) -> StepError:
        return StepError(
            f"the network service {shown}, since the user {self._user} lacks the role {role}: give that user the roles "
            "admin and service",
            code="network-failed",
        )

    def _record(self, row: Mapping[str, Any]) -> PortRecord:
        return PortRecord(**vars(_port(row)), bindings=self._bindings(row["id"]))


def _is_refused_binding(response: Any) -> bool:
    """Say whether an error 500 means that the host cannot bind the port; any other is a failure of Neutron itself."""
    try:
        told = response.json()
    except ValueError:
        return False
    error = told.get("NeutronError") if isinstance(told, dict) else None
    return isinstance(error, dict) and error.get("type") == _REFUSAL


def _names(binding: Mapping[str, Any], profile: Mapping[str, Any]) -> bool:
    """Say whether a binding names the same providers as a profile, and has not failed with them.

    Neutron keeps the providers in the profile of a binding that failed, so that the names alone prove nothing. If the
    profile names no providers, it does not matter whether the binding has failed.
    """
    wanted = profile.get(ALLOCATION)
    if dict(binding["profile"] or {}).get(ALLOCATION) != wanted:
        return False
    # A binding without providers may have failed before the move. The move leaves such a binding as it is.
    return wanted is None or binding["vif_type"] != _FAILED


def _port(row: Mapping[str, Any]) -> Port:
    return Port(
        id=row["id"],
        mac=row["mac_address"],
        host=row.get("binding:host_id") or "",
        profile=dict(row.get(_PROFILE) or {}),
        device_owner=row["device_owner"],
        server=row["device_id"],
        vnic_type=row.get("binding:vnic_type") or NORMAL,
        resources=asked_by(row["id"], row.get(_REQUEST)),
        tells_request=_REQUEST in row,
    )
