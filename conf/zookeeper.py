"""Where ZooKeeper is."""

from __future__ import annotations

from oslo_config import cfg

GROUP = cfg.OptGroup("zookeeper", "The ensemble that conductors and workers meet at")

OPTS = (
    cfg.StrOpt(
        "hosts",
        default="127.0.0.1:2181",
        help="The servers of the ensemble: NAME:PORT, or several of them, separated by commas. All of a deployment's "
        "conductors and workers name the same ensemble.",
    ),
    cfg.FloatOpt(
        "session_timeout",
        default=10.0,
        min=1.0,
        max=120.0,
        help="Seconds after which ZooKeeper gives up a process that it does not hear of: so long are the claims of a "
        "conductor that was killed still held, and a worker that was killed is taken to be up. ZooKeeper itself holds "
        "it between 2 and 20 of its ticks.",
    ),
)
