"""Defines the options for ZooKeeper."""

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
        help="Seconds after which ZooKeeper gives up a process that it does not hear from. A conductor that was killed "
        "still holds its claims for this long. A worker that was killed counts as up for this long. ZooKeeper keeps "
        "the value between 2 and 20 of its ticks.",
    ),
    cfg.BoolOpt(
        "tls",
        help="Whether connections to ZooKeeper use TLS with the certificate of [tls]. Then every node gets an access "
        "list: conductors may use all nodes, and a worker those of its own host. Not set: true if a server in the "
        "option hosts is another machine, else false. If every server is this machine and [tls] is filled in, the "
        "option has to be set. With false, everybody who reaches ZooKeeper can command all "
        "hosts; on this machine that is every user.",
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
