"""Defines the options for conductors, which run the flows of moves."""

from __future__ import annotations

from oslo_config import cfg

GROUP = cfg.OptGroup("conductor", "Running the flows of moves")

OPTS = (
    cfg.IntOpt(
        "threads",
        default=4,
        min=1,
        max=256,
        help="How many flows one conductor runs at the same time.",
    ),
    cfg.FloatOpt(
        "host_away",
        default=30.0,
        min=0.0,
        max=86400.0,
        help="Seconds for which a step before the point of no return waits for a host whose worker is away. From its "
        "point of no return on, a flow only goes forward. In most flows this point is the start of the guest on its "
        "new host. In a confirm it is the removal of the source's disks.",
    ),
    cfg.FloatOpt(
        "retry_for",
        default=60.0,
        min=0.0,
        max=86400.0,
        help="Seconds for which an undo, or a step beyond the point of no return (see host_away), is tried again "
        "before its move rests and asks for an operator.",
    ),
    cfg.FloatOpt(
        "retry_pause",
        default=0.2,
        min=0.01,
        max=5.0,
        help="Seconds before the first repetition of a failed undo, or of a failed step beyond the point of no return "
        "(see host_away). The pause doubles up to 5 s. The option retry_for says when the repetitions end.",
    ),
    cfg.FloatOpt(
        "step_deadline",
        default=600.0,
        min=1.0,
        max=86400.0,
        help="Seconds that one run of a step may spend on its requests to Placement, Neutron, Cinder and Glance, "
        "repeated requests included. After that the run has failed, whether the service is silent or answers too "
        "slowly. A database server that is silent for as long counts as away. Time spent waiting for a worker does "
        "not count: commands to workers have deadlines of their own.",
    ),
    cfg.FloatOpt(
        "plan_rate",
        default=100.0,
        min=0.1,
        max=100000.0,
        help="How many MiB of disks are copied a second, for the downtime that `move plan` estimates. Used only while "
        "the journal has no move whose disks were copied in the same way, directly or through the image service.",
    ),
    cfg.FloatOpt(
        "plan_pause",
        default=20.0,
        min=0.0,
        max=86400.0,
        help="Seconds for which a guest is off in addition to the time that the copy of its disks takes, for the "
        "downtime that `move plan` estimates. Used only while the journal has no move that "
        "stopped a guest and started it again. Moves within a cell and moves between cells are looked at apart.",
    ),
)
