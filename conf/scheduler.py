"""Defines the options for the choice of a destination."""

from __future__ import annotations

from typing import Final

from oslo_config import cfg

GROUP = cfg.OptGroup("scheduler", "Choice of the destination")

WEIGHED: Final = {
    "ram": ("free memory", 1.0),
    "cpu": ("free virtual CPUs", 1.0),
    "disk": ("free disk", 1.0),
    "soft_affinity": ("the number of servers of the same soft-affinity group", 1.0),
    "soft_anti_affinity": ("the lack of servers of the same soft-anti-affinity group", 1.0),
    "cross_cell_move": ("being in the cell that the server is in already", 1000000.0),
}
"""Maps each weigher to what it counts, in words for the option's help, and to its default multiplier."""

OPTS: Final[tuple[cfg.Opt, ...]] = (
    cfg.IntOpt(
        "max_attempts",
        default=3,
        min=1,
        max=100,
        help="How many hosts are tried for one move, the first included. 1 tries no alternate. Nova's option of the "
        "same name.",
    ),
    cfg.BoolOpt(
        "allow_resize_to_same_host",
        default=False,
        help="Whether a resize may stay on the host that the server is on. A cold migration never does, unless the "
        "host's hypervisor declares that it can. Nova's option of the same name.",
    ),
    cfg.BoolOpt(
        "enable_isolated_aggregate_filtering",
        default=False,
        help="Whether a host in an aggregate with metadata trait:NAME=required is kept for servers whose flavor or "
        "image requires that trait. Nova's option of the same name.",
    ),
    cfg.BoolOpt(
        "enable_tenant_isolation",
        default=True,
        help="Whether a host in an aggregate with metadata filter_tenant_id, or filter_tenant_id_NAME, is kept for "
        "servers of the projects whose ids stand there, as Nova's filter AggregateMultiTenancyIsolation does where it "
        "is enabled.",
    ),
    *(
        cfg.FloatOpt(
            f"{name}_weight_multiplier",
            default=times,
            min=-1000000.0,
            max=1000000.0,
            help=f"The multiplier of {what} when hosts are weighed; below 0 the order is turned round. An aggregate's "
            "metadata of the same name replaces it for the aggregate's hosts. Nova's option of the same name.",
        )
        for name, (what, times) in WEIGHED.items()
    ),
)
