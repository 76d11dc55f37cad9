"""Cloud files in which each port is guaranteed bandwidth and a packet rate, made of those in which none is."""

from __future__ import annotations

from typing import Any, Final

import yaml

NAME: Final = "guaranteed"
"""The name of the network, of the QoS policy and of the physical network."""
BRIDGE: Final = "br-g"
_BRIDGE: Final = {
    "bandwidth": {BRIDGE: {"physical_network": NAME, "egress_kbps": 100_000, "ingress_kbps": 100_000}},
    "kpps": 1_000,
}
_POLICY: Final = {"egress_kbps": 1_000, "ingress_kbps": 1_500, "kpps": 10}


def guaranteed(text: str) -> str:
    """Return the cloud file with hosts that can give it, and ports that ask for it."""
    told: dict[str, Any] = yaml.safe_load(text)
    for cell in told["cells"].values():
        cell["hosts"] = {name: _BRIDGE | (host or {}) for name, host in cell["hosts"].items()}
    told["networks"] = {NAME: {"physical_network": NAME}} | told.get("networks", {})
    told["qos"] = {NAME: _POLICY} | told.get("qos", {})
    for server in told.get("servers", {}).values():
        server["ports"] = [{"network": NAME, "qos": NAME} | port for port in server.get("ports", [])]
    return yaml.safe_dump(told, sort_keys=False)
