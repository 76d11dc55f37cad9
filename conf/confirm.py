"""Defines the options for moves that wait for their confirm or revert."""

from __future__ import annotations

from oslo_config import cfg

GROUP = cfg.OptGroup("confirm", "Confirming and reverting")

OPTS = (
    cfg.IntOpt(
        "deadline",
        default=86400,
        min=1,
        max=31536000,
        help="Seconds that a move waits for an operator to confirm or revert it, before Droveway confirms it. It "
        "counts for moves with `--confirm deadline`. `move create --deadline` sets it for one move.",
    ),
    cfg.IntOpt(
        "healthy_deadline",
        default=600,
        min=1,
        max=31536000,
        help="Seconds within which the guest has to be healthy, or the move is reverted. It counts for moves with "
        "`--confirm healthy`. `move create --deadline` sets it for one move. While the destination cannot be "
        "asked, the move waits on.",
    ),
    cfg.FloatOpt(
        "healthy_after",
        default=30.0,
        min=0.0,
        max=86400.0,
        help="Seconds that a guest has to run on its new host without a restart by the hypervisor to be healthy.",
    ),
    cfg.IntOpt(
        "keep_source",
        default=0,
        min=0,
        max=31536000,
        help="Seconds for which the source's disks are kept, renamed, after a move was confirmed, and then deleted; 0: "
        "they are deleted at once. `move create --keep-source` sets it for one move.",
    ),
    cfg.FloatOpt(
        "probe_timeout",
        default=5.0,
        min=0.0,
        max=60.0,
        help="Seconds that the QEMU guest agent has to answer guest-ping, where a server's definition has a channel "
        "for one (org.qemu.guest_agent.0, which Nova adds for the image property hw_qemu_guest_agent=yes). A server "
        "without such a channel counts as healthy when it runs. With 0 no agent is asked, and every server that runs "
        "counts as healthy.",
    ),
)
