"""Defines the option that keeps conductors to an older wire protocol while hosts are upgraded."""

from __future__ import annotations

from oslo_config import cfg

from droveway.wire.levels import LEVEL

GROUP = cfg.OptGroup("upgrade_levels", "What is spoken between releases while hosts are upgraded")

OPTS = (
    cfg.IntOpt(
        "worker",
        min=1,
        max=LEVEL,
        help="The highest level of commands that conductors send to workers. A release that brings new commands has a "
        "higher level than the releases before it. Not set: every level that this release knows. Set it to the level "
        "of the oldest worker while hosts are upgraded. A new flow then uses an older version of its graph, if there "
        "is one that needs no higher level. If there is none, the flow is refused, for all hosts. Other requests to "
        "workers that need a higher level are refused too. Nova's upgrade_levels do the same for its services.",
    ),
)
