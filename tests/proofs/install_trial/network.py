"""The networks of the trial: hosts and ZooKeeper servers have one each, and a bridge joins them to the conductor."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

CONTROL: Final = "10.213.0.1"
"""Where the others reach the conductor's machine, whose network is this machine's."""
HOSTS: Final = {"node1.example": "10.213.0.11", "node2.example": "10.213.0.12"}
ZOOKEEPERS: Final = {"zk1.example": "10.213.0.21", "zk2.example": "10.213.0.22", "zk3.example": "10.213.0.23"}

_BRIDGE: Final = "drovewaytrial"
_TABLE: Final = "droveway_trial"
_FORWARD: Final = Path("/proc/sys/net/ipv4/ip_forward")
_RULES: Final = f"""
table ip {_TABLE} {{
    chain out {{
        type nat hook postrouting priority srcnat
        ip saddr 10.213.0.0/24 ip daddr != 10.213.0.0/24 masquerade
    }}
}}
"""


def space(name: str) -> str:
    """Name a machine's network namespace."""
    return f"droveway-{name.partition('.')[0]}"


@contextlib.contextmanager
def networks(machines: Mapping[str, str]) -> Iterator[None]:
    """Make a network for each machine, by its address, that reaches the conductor's, the others and the world."""
    forwarded = _FORWARD.read_text()
    with contextlib.ExitStack() as stack:
        _made(stack, f"ip link add {_BRIDGE} type bridge", f"ip link del {_BRIDGE}")
        _run(f"ip addr add {CONTROL}/24 dev {_BRIDGE}")
        _run(f"ip link set {_BRIDGE} up")
        stack.callback(_FORWARD.write_text, forwarded)
        _FORWARD.write_text("1\n")
        _run("nft -f -", _RULES)
        stack.callback(_run, f"nft delete table ip {_TABLE}")
        for number, (machine, address) in enumerate(machines.items()):
            name, outer, inner = space(machine), f"dwt{number}out", f"dwt{number}in"
            _made(stack, f"ip netns add {name}", f"ip netns del {name}")
            _run(f"ip link add {outer} type veth peer name {inner} netns {name}")
            _run(f"ip link set {outer} master {_BRIDGE} up")
            _run(f"ip -n {name} addr add {address}/24 dev {inner}")
            for device in ("lo", inner):
                _run(f"ip -n {name} link set {device} up")
            _run(f"ip -n {name} route add default via {CONTROL}")
        yield


def _made(stack: contextlib.ExitStack, make: str, remove: str) -> None:
    _run(make)
    stack.callback(_run, remove)


def _run(words: str, text: str = "") -> None:
    subprocess.run(words.split(), input=text, text=True, check=True)
