"""Defines the options for the worker of a host."""

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
        help="The directory of the worker's own journal, which says what the host has done. {host} in it stands for "
        "the host's name.",
    ),
    cfg.StrOpt(
        "run_path",
        default="/run/droveway",
        help="The directory of the worker's sockets, by which the workers of this machine fetch disks.",
    ),
    cfg.StrOpt(
        "transfer_listen",
        help="ADDRESS:PORT at which the workers of other machines fetch disks, through mutual TLS with the certificate "
        "of [tls]: 0.0.0.0:4790 for every address of this host. Without it disks go through a socket below run_path, "
        "to workers of this machine alone.",
    ),
    cfg.StrOpt(
        "transfer_address",
        help="NAME:PORT at which other workers reach this worker: an address of a network for storage, say. Not set: "
        "the host's name and the port of transfer_listen. The worker still has to show a certificate for the host's "
        "name.",
    ),
    cfg.FloatOpt(
        "transfer_limit",
        default=0.0,
        min=0.0,
        max=1000000.0,
        help="How many MiB a second this host sends at most, and receives at most, in all copies of disks together; "
        "0 for no limit.",
    ),
    cfg.FloatOpt(
        "transfer_limit_each",
        default=0.0,
        min=0.0,
        max=1000000.0,
        help="How many MiB a second this host receives at most for one server; 0 for no limit.",
    ),
    cfg.StrOpt(
        "instances_root",
        default="/var/lib/nova",
        help="The directory whose subdirectory instances holds the disks of the host's guests. {host} in it stands for "
        "the host's name.",
    ),
)
