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
        help="The highest level of commands that conductors send to workers; new commands raise a release's level. "
        "Not set: every level that this release knows. Set it to the level of the oldest worker while hosts are "
        "upgraded. Then a new flow uses an older version of its graph where that one needs no later level, and every "
        "other request that needs a later level is refused, whichever host it is for. Nova's upgrade_levels do the "
        "same for its services.",
    ),
)
