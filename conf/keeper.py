"""Defines how many moves the keeper, the part of a conductor that admits moves, lets run at the same time."""

from __future__ import annotations

from oslo_config import cfg

GROUP = cfg.OptGroup("keeper", "How many moves the keeper, a part of each conductor, lets run at the same time")

OPTS = (
    cfg.IntOpt(
        "max_running",
        default=16,
        min=1,
        max=10000,
        help="How many resizes, migrations, shelves and unshelves run at the same time, or are offered to conductors; "
        "the others wait in the journal, the oldest first. Confirms, reverts, deletes and undos never wait for them. "
        "A number above the sum of all conductors' threads gains nothing.",
    ),
    cfg.IntOpt(
        "per_host",
        default=0,
        min=0,
        max=10000,
        help="How many resizes, migrations, shelves and unshelves that run at the same time may have one host as "
        "their source or destination; 0: no limit. A move whose destination the scheduler has not chosen yet counts "
        "for its source alone.",
    ),
    cfg.IntOpt(
        "per_cell",
        default=0,
        min=0,
        max=10000,
        help="How many resizes, migrations, shelves and unshelves that run at the same time may have their source or "
        "destination in one cell; 0: no limit.",
    ),
    cfg.IntOpt(
        "per_rack",
        default=0,
        min=0,
        max=10000,
        help="How many resizes, migrations, shelves and unshelves that run at the same time may have their source or "
        "destination in one rack; 0: no limit.",
    ),
    cfg.StrOpt(
        "rack_key",
        default="rack",
        help="The metadata of Nova's host aggregates that names the rack of an aggregate's hosts. A host in no such "
        "aggregate is in no rack.",
    ),
)
