"""The certificate of a daemon."""

from __future__ import annotations

from oslo_config import cfg

GROUP = cfg.OptGroup("tls", "The certificate by which a conductor or a worker is known to ZooKeeper and to workers")

OPTS = (
    cfg.StrOpt(
        "certificate",
        help="The file of its certificate, PEM, with the certificates between it and the authority. Its DNS names are "
        "where others find it; those of a worker have to hold the host's name as Nova knows it. Read anew for each "
        "connection, so that a renewed one needs no restart.",
    ),
    cfg.StrOpt(
        "key",
        help="The file of the certificate's private key, PEM, without a passphrase. Nobody but its owner and group may "
        "read it.",
    ),
    cfg.StrOpt(
        "authority",
        help="The file of the authorities, PEM, that the certificates of all others are held against. No other "
        "authority is trusted.",
    ),
)
