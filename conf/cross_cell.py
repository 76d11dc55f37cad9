"""Defines the options for moves into another cell."""

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
    cfg.StrOpt(
        "transfer",
        default="auto",
        choices=("auto", "direct", "image"),
        help="How a server's disks go into another cell: direct from worker to worker, by image through the image "
        "service, or auto, which is direct where the destination's worker reaches the transfer port of the source's, "
        "and else by image. --transfer asks for another way for one move.",
    ),
)
