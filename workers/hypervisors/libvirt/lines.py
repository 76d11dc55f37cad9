"""The lines between a host and its guest in a domain's XML: serial lines, consoles, and the guest agent's channel.

What the guest sees of them is its own and stays.  What stands behind them, a socket, a file or a terminal, is the
host's: a serial line has a terminal that libvirt opens, and the agent's channel a socket that libvirt names and holds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from lxml import etree

AGENT: Final = "org.qemu.guest_agent.0"
"""The name by which guest and host know the guest agent's channel."""

LOG: Final = "console.log"
"""What a guest wrote to its serial line lies under this name in its server's directory, as Nova expects it."""

_TERMINAL: Final = "pty"
_GUESTS_OWN: Final = frozenset({"target", "alias", "address"})
_TARGETS_OWN: Final = frozenset({"type", "name"})


def adapt_to_host(devices: Any, directory: Path) -> None:
    """Give each line what it has on this host; ``directory`` is the server's own here."""
    for line in (*devices.findall("serial"), *devices.findall("console")):
        logged = line.find("log") is not None or line.get("type") == "file"
        _strip(line)
        line.set("type", _TERMINAL)
        line.attrib.pop("tty", None)
        if logged:
            line.insert(0, etree.Element("log", file=str(directory / LOG), append="off"))
    for channel in _agents(devices):
        _strip(channel)
        target = channel.find("target")
        for name in set(target.attrib) - _TARGETS_OWN:
            del target.attrib[name]


def has_agent(devices: Any) -> bool:
    """Whether the guest has a channel for its agent."""
    return bool(_agents(devices))


def _agents(devices: Any) -> list[Any]:
    return [
        channel
        for channel in devices.findall("channel[@type='unix']")
        if (target := channel.find("target")) is not None
        and (target.get("type"), target.get("name")) == ("virtio", AGENT)
    ]


def _strip(line: Any) -> None:
    for child in [child for child in line if child.tag not in _GUESTS_OWN]:
        line.remove(child)
