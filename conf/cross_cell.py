"""Moves into another cell."""

from __future__ import annotations

from typing import Final

from oslo_config import cfg

GROUP = cfg.OptGroup("cross_cell", "Moves into another cell")

OPTS: Final[tuple[cfg.Opt, ...]] = (
    cfg.BoolOpt(
        "allowed",
        default=False,
        help="Whether servers may leave their cell. Without it a move stays in the cell that its server lives in, as "
        "Nova's default policy has it.",
    ),
)
