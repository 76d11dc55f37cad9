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
    cfg.BoolOpt(
        "tls",
        help="Whether ZooKeeper is spoken to through TLS, with the certificate of [tls], and every node gets an access "
        "list by which only conductors, and workers for what is their own host's, get at it. Where this is not set: "
        "yes, unless all the servers of hosts are this machine itself; then it has to be said where [tls] is given. "
        "With false, whoever reaches ZooKeeper commands all hosts: on this machine that is every user.",
    ),
    cfg.StrOpt(
        "conductor_identity",
        default="CN=droveway-conductor",
        help="The subject of the certificates of all conductors, as RFC 2253 writes it: they may do everything. The "
        "same on every machine.",
    ),
    cfg.StrOpt(
        "worker_identity",
        default="CN={host}",
        help="The subject of the certificate of a host's worker, as RFC 2253 writes it, with the host's name as Nova "
        "knows it for {host}. The same on every machine.",
    ),
)
