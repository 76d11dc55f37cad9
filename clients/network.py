"""Neutron: a server's ports and their bindings to hosts (extension binding-extended).

The session needs the role ``service``: Neutron keeps bindings from everybody else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from droveway.clients.rest import CONFLICT, NOT_FOUND, Adapter, Rest, TryAgainError, detail_of
from droveway.errors import DestinationFault, StepError

ACTIVE: Final = "ACTIVE"
INACTIVE: Final = "INACTIVE"
COMPUTE_OWNER: Final = "compute:"
"""Begins the owner of a server's port; the zone of its host follows."""
NORMAL: Final = "normal"
"""The vnic type of a port that any host can plug into its switch."""

DEVICE_KEYS: Final = frozenset({
    "allocation", "arq_uuid", "card_serial_number", "device_mac_address", "pci_slot", "pci_vendor_info",
    "pf_mac_address", "physical_network", "vf_num",
})  # fmt: skip
"""What a binding's profile says of the host's device: Nova takes these out of a port that it unbinds."""

_STALE: Final = 412
_FAILED: Final = "binding_failed"
_BINDING_REFUSED: Final = 500


@dataclass(frozen=True)
class Port:
    """A port as Neutron lists it; ``host`` is where it is bound actively, empty when it is unbound."""

    id: str
    mac: str
    host: str
    profile: dict[str, Any]
    """The profile of the active binding."""
    device_owner: str
    server: str
    vnic_type: str = NORMAL
    needs_resources: bool = False
    """Whether it asks Placement for resources of its own, such as bandwidth; only an admin is shown that."""


@dataclass(frozen=True, kw_only=True)
class PortRecord(Port):
    """A port with all of its bindings, for which Neutron is asked port by port."""

    bindings: dict[str, str]
    """Host → ACTIVE or INACTIVE."""


class Network:
    """Neutron; ``adapter`` is openstacksdk's ``connection.network`` or the embedded service.

    Every verb of a move may be repeated. All raise `droveway.errors.StepError`, with the codes ``network-unavailable``
    and ``network-failed``.
    """

    def __init__(self, adapter: Adapter, *, on_request: Callable[[str, str], None] | None = None) -> None:
        self._rest = Rest(adapter, "network", on_request)

    def listed_ports(self, server: str) -> list[Port]:
        """The server's ports, by id, without their bindings."""
        return sorted((_port(row) for row in self._rows(server)), key=lambda port: port.id)

    def ports(self, server: str) -> list[PortRecord]:
        """The server's ports, by id."""
        return sorted((self._record(row) for row in self._rows(server)), key=lambda port: port.id)

    def all_ports(self) -> list[PortRecord]:
        """Every port of the cloud, by id: for the audit."""
        rows = self._rest.get("/ports")["ports"]
        return sorted((self._record(row) for row in rows), key=lambda port: port.id)

    def ensure_binding(self, port: str, host: str, profile: Mapping[str, Any]) -> None:
        """Bind the port to the host, INACTIVE beside an active binding; an existing binding stays as it is.

        Raises `droveway.errors.DestinationFault` ``binding-refused`` when Neutron cannot bind ports on that host.
        """
        body = {"binding": {"host": host, "vnic_type": NORMAL, "profile": dict(profile)}}

        def bind() -> None:
            if host in self._bindings(port):
                return
            response = self._rest.send("POST", f"/ports/{port}/bindings", json=body, final=(_BINDING_REFUSED,))
            if response.status_code == _BINDING_REFUSED and host not in self._bindings(port):
                raise DestinationFault(
                    f"Neutron refused to bind the port {port} on {host}: {detail_of(response)}",
                    code="binding-refused",
                    host=host,
                )
            if response.status_code not in (_BINDING_REFUSED, CONFLICT):
                self._rest.done("POST", f"/ports/{port}/bindings", response)

        self._rest.repeat(bind)

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
                path = f"/ports/{port}/bindings/{host}/activate"
                response = self._rest.send("PUT", path)
                if response.status_code != CONFLICT:
                    self._rest.done("PUT", path, response)
            self._own(port, device_owner)

        self._rest.repeat(switch)

    def delete_binding(self, port: str, host: str) -> None:
        """Remove the host's binding; done when it, or the port, is gone. Without its active one a port is unbound."""
        self._delete(f"/ports/{port}/bindings/{host}")

    def bind(self, port: str, host: str, *, profile: Mapping[str, Any], device_owner: str) -> None:
        """Bind an unbound port to the host; done when it is bound there with this profile and owner.

        Raises `droveway.errors.DestinationFault` ``binding-refused`` when Neutron cannot bind ports on that host.
        """
        wanted = {"binding:host_id": host, "binding:profile": dict(profile), "device_owner": device_owner}
        row = self._put(port, wanted)
        if row.get("binding:vif_type") == _FAILED:
            raise DestinationFault(
                f"Neutron could not bind the port {port} on {host}", code="binding-refused", host=host
            )

    def unbind(self, port: str, *, profile: Mapping[str, Any]) -> None:
        """Bind the port to no host; it stays its server's, with this profile. Done when it is so, or gone."""
        self._put(port, {"binding:host_id": "", "binding:profile": dict(profile)}, may_be_gone=True)

    def create_port(
        self, server: str, *, mac: str, network_id: str, host: str, device_owner: str = "compute:nova"
    ) -> str:
        """Make a port of the server, bound to the host; for a lab. The id of the new port."""
        port = {
            "device_id": server,
            "mac_address": mac,
            "network_id": network_id,
            "binding:host_id": host,
            "device_owner": device_owner,
        }
        response = self._rest.repeat(lambda: self._rest.send("POST", "/ports", json={"port": port}))
        return str(self._rest.done("POST", "/ports", response).json()["port"]["id"])

    def delete_port(self, port: str) -> None:
        """Remove the port; done when it is gone."""
        self._delete(f"/ports/{port}")

    def _put(self, port: str, wanted: Mapping[str, Any], *, may_be_gone: bool = False) -> dict[str, Any]:
        """Let the port have these values, all in one request; the port as Neutron shows it then."""
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
        changed: dict[str, Any] = self._rest.done("PUT", path, response).json()["port"]
        return changed

    def _delete(self, path: str) -> None:
        response = self._rest.repeat(lambda: self._rest.send("DELETE", path))
        if response.status_code != NOT_FOUND:
            self._rest.done("DELETE", path, response)

    def _bindings(self, port: str) -> dict[str, str]:
        rows = self._rest.get(f"/ports/{port}/bindings")["bindings"]
        # That of an unbound port is on no host.
        return {row["host"]: row["status"] for row in rows if row["host"]}

    def _own(self, port: str, device_owner: str) -> None:
        self._put_once(port, {"device_owner": device_owner})

    def _rows(self, server: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._rest.get("/ports", params={"device_id": server})["ports"]
        return found

    def _record(self, row: Mapping[str, Any]) -> PortRecord:
        return PortRecord(**vars(_port(row)), bindings=self._bindings(row["id"]))


def _port(row: Mapping[str, Any]) -> Port:
    return Port(
        id=row["id"],
        mac=row["mac_address"],
        host=row.get("binding:host_id") or "",
        profile=dict(row.get("binding:profile") or {}),
        device_owner=row["device_owner"],
        server=row["device_id"],
        vnic_type=row.get("binding:vnic_type") or NORMAL,
        needs_resources=bool(row.get("resource_request")),
    )
