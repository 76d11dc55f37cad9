"""Defines how the worker of a libvirt host reaches its hypervisor."""

from __future__ import annotations

from oslo_config import cfg

GROUP = cfg.OptGroup("libvirt", "The libvirt daemon of a host")

OPTS = (
    cfg.StrOpt(
        "uri",
        default="qemu:///system",
        help="The connection URI of the host's libvirt daemon, on this machine.",
    ),
)
