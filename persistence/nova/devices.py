"""Makes the JSON that Nova keeps of a server's ports and volumes: `network_info` and `connection_info`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]

_TAP_NAME_LENGTH = 14


@dataclass(frozen=True, kw_only=True)
class Subnet:
    """Holds a subnet as a port uses it; `addresses` are the port's own fixed addresses in it."""

    cidr: str
    gateway: str | None
    addresses: tuple[str, ...]
    dns: tuple[str, ...] = ()
    version: int = 4
    enable_dhcp: bool = False

    def as_json(self) -> Json:
        """Return the subnet in the form in which the network of a VIF lists it."""
        fixed = [self._address(address, "fixed") | {"floating_ips": []} for address in self.addresses]
        return {
            "cidr": self.cidr,
            "dns": [self._address(address, "dns") for address in self.dns],
            "gateway": self._address(self.gateway, "gateway"),
            "ips": fixed,
            "routes": [],
            "version": self.version,
            "meta": {"enable_dhcp": self.enable_dhcp},
        }

    def _address(self, address: str | None, kind: str) -> Json:
        return {"address": address, "type": kind, "version": self.version if address else None, "meta": {}}


@dataclass(frozen=True, kw_only=True)
class Network:
    """Holds a network as a port uses it."""

    id: str
    label: str
    tenant_id: str
    subnets: tuple[Subnet, ...]
    bridge: str = "br-int"
    mtu: int = 1500
    physical_network: str | None = None
    tunneled: bool = False

    def as_json(self) -> Json:
        """Return the network in the form in which a VIF has it; `physical_network` is missing when it is None."""
        meta: Json = {"injected": False, "tenant_id": self.tenant_id, "mtu": self.mtu}
        if self.physical_network is not None:
            meta["physical_network"] = self.physical_network
        subnets = [subnet.as_json() for subnet in self.subnets]
        meta["tunneled"] = self.tunneled
        return {"id": self.id, "bridge": self.bridge, "label": self.label, "subnets": subnets, "meta": meta}


@dataclass(frozen=True, kw_only=True)
class Port:
    """Holds a port of a server; `details` are the binding's `vif_details`."""

    id: str
    mac: str
    network: Network
    vif_type: str = "ovs"
    details: Mapping[str, Any] = field(default_factory=dict)
    active: bool = False
    vnic_type: str = "normal"
    profile: Mapping[str, Any] = field(default_factory=dict)
    preserve_on_delete: bool = False

    def as_vif(self) -> Json:
        """Return the port as a VIF of Nova; it has the name of the tap device that Neutron's agents expect."""
        return {
            "id": self.id,
            "address": self.mac,
            "network": self.network.as_json(),
            "type": self.vif_type,
            "details": dict(self.details),
            "devname": f"tap{self.id}"[:_TAP_NAME_LENGTH],
            "ovs_interfaceid": self.id if self.vif_type == "ovs" else None,
            "qbh_params": None,
            "qbg_params": None,
            "active": self.active,
            "vnic_type": self.vnic_type,
            "profile": dict(self.profile),
            "preserve_on_delete": self.preserve_on_delete,
            "delegate_create": True,
            "meta": {},
        }


def network_info(ports: Iterable[Port]) -> list[Json]:
    """Return the value of `instance_info_caches.network_info` for the ports."""
    return [port.as_vif() for port in ports]


def connection_info(
    attachment: Mapping[str, Any],
    *,
    previous: Mapping[str, Any] | None = None,
    multiattach: bool = False,
) -> Json:
    """Return the value of `block_device_mapping.connection_info` for an attachment as Cinder's API shows it.

    Cinder's flat `connection_info` goes under the key `data`, as Nova's Cinder client does it. `previous` is the
    column's value before a refresh: a multipath id that a host wrote there is kept.
    """
    flat = dict(attachment["connection_info"])
    flat.pop("attachment_id", None)
    info = {"driver_volume_type": flat.pop("driver_volume_type", None), "data": flat}
    info |= {key: value for key, value in attachment.items() if key not in ("id", "attach_mode", "connection_info")}
    info["serial"] = attachment["volume_id"]
    multipath = (previous or {}).get("data", {}).get("multipath_id")
    if multipath is not None:
        flat.setdefault("multipath_id", multipath)
    return info | {"multiattach": True} if multiattach else info
