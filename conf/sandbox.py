"""Defines the options of the sandbox, the hypervisor of labs: its disks are files, its guests are processes."""

from __future__ import annotations

from oslo_config import cfg

GROUP = cfg.OptGroup("sandbox", "The hypervisor of labs, for trying out")

OPTS = (
    cfg.StrOpt(
        "guests_log",
        help="The file that the guests of all hosts write their starts and stops to; without it guests.log in "
        "[worker] instances_root.",
    ),
    cfg.StrOpt(
        "volumes",
        help="The directory with a file for each volume. A volume whose path lies outside this directory is refused.",
    ),
)
