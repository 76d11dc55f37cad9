"""How workers treat guests."""

from __future__ import annotations

from oslo_config import cfg

GROUP = cfg.OptGroup("worker", "The worker of a hypervisor host")

OPTS = (
    cfg.FloatOpt(
        "shutdown_timeout",
        default=60.0,
        min=0.0,
        max=3600.0,
        help="Seconds that a guest has to shut down before it is cut off. Nova's option of the same name.",
    ),
)
