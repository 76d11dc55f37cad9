"""Defines the options for the certificate of a daemon."""

from __future__ import annotations

from oslo_config import cfg

GROUP = cfg.OptGroup("tls", "The certificate by which a conductor or a worker is known to ZooKeeper and to workers")

OPTS = (
    cfg.StrOpt(
        "certificate",
        help="The file of the daemon's certificate, PEM, with the certificates between it and the authority. One of "
        "its DNS names is the name by which others connect to this machine; a worker's has to be the host's name as "
        "Nova knows it. The daemon reads the file for each new connection, so that a renewed certificate needs no "
        "restart.",
    ),
    cfg.StrOpt(
        "key",
        help="The file of the certificate's private key, PEM, without a passphrase. Nobody but its owner and group may "
        "read it.",
    ),
    cfg.StrOpt(
        "authority",
        help="The PEM file with the certificates of the authorities that are trusted. The daemon verifies "
        "with them every certificate that others show to it. It trusts no other authority.",
    ),
)
