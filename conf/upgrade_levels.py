"""What is spoken while an installation is upgraded."""

from __future__ import annotations

from oslo_config import cfg

from droveway.wire.levels import LEVEL

GROUP = cfg.OptGroup("upgrade_levels", "What is spoken between releases while hosts are upgraded")

OPTS = (
    cfg.IntOpt(
        "worker",
        min=1,
        max=LEVEL,
        help="How many levels of commands, counted from the first release on, are spoken to workers; none: all that "
        "this release knows. Pinned to the level of the oldest worker, flows begin by older graphs where these need no "
        "later one, and all else that would is refused, whichever host it is for. Nova's upgrade_levels do the same "
        "for its services.",
    ),
)
