"""How workers treat guests."""

from __future__ import annotations

from oslo_config import cfg

GROUP = cfg.OptGroup("worker", "The worker of a hypervisor host")

OPTS = (
    cfg.FloatOpt(
        "shutdown_timeout",
        default=60.0,
        min=0.0,
        max=3600.0,
        help="Seconds that a guest has to shut down before it is cut off. Nova's option of the same name.",
    ),
    cfg.StrOpt(
        "hypervisor",
        default="libvirt",
        choices=(("libvirt", "libvirt with QEMU"), ("sandbox", "files and processes, for trying out")),
        help="What runs the host's guests, and so where their disks and definitions are found.",
    ),
    cfg.StrOpt(
        "state_path",
        default="/var/lib/droveway",
        help="The directory of the worker's own journal, which says what the host has done.",
    ),
    cfg.StrOpt(
        "run_path",
        default="/run/droveway",
        help="The directory of the worker's sockets, by which the workers of this machine fetch disks.",
    ),
    cfg.StrOpt(
        "instances_root",
        default="/var/lib/nova",
        help="The directory whose subdirectory instances holds the disks of the host's guests.",
    ),
)
