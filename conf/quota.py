"""Defines how much a project may have where Nova's databases do not say it."""

from __future__ import annotations

from oslo_config import cfg

GROUP = cfg.OptGroup("quota", "Quotas that a resize is held to")

_MOST = 10**9

OPTS = (
    cfg.IntOpt(
        "cores",
        default=20,
        min=-1,
        max=_MOST,
        help="How many vCPUs the servers of a project may have; -1 means without limit. Counts where neither the "
        "project nor the default class has a limit in Nova's API database. Nova's option of the same name.",
    ),
    cfg.IntOpt(
        "ram",
        default=51200,
        min=-1,
        max=_MOST,
        help="How many MiB of memory the servers of a project may have; -1 means without limit. Counts where neither "
        "the project nor the default class has a limit in Nova's API database. Nova's option of the same name.",
    ),
)
