"""Adapts the lines between a host and its guest in a domain's XML: serial lines, consoles, the guest agent's channel.

The guest's end of a line stays as it is.  The host's end, which may be a socket, a file or a terminal, is made anew: a
serial line gets a terminal that libvirt opens, and the agent's channel a socket that libvirt names and holds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from lxml import etree

AGENT: Final = "org.qemu.guest_agent.0"
"""The name of the guest agent's channel, on the host and in the guest."""

LOG: Final = "console.log"
"""The file in the server's directory for what the guest writes to its serial line, as Nova expects it."""

_TERMINAL: Final = "pty"
_GUESTS_OWN: Final = frozenset({"target", "alias", "address"})
_TARGETS_OWN: Final = frozenset({"type", "name"})


def adapt_to_host(devices: Any, directory: Path) -> None:
    """Make the host's end of each line; ``directory`` is the server's own on this host."""
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
    """Return whether the guest has a channel for its agent."""
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
