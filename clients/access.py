"""Makes the access list of every node in ZooKeeper, by the subjects of certificates.

A conductor may do everything.  The worker of a host reads its own commands and inquiries, and makes and removes its own
results, progress, answers and registration.  A move's epoch is the number of its present claim. Every worker compares
it with the epoch in its commands, so everybody who gets in may read epochs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kazoo import exceptions
from kazoo.hosts import collect_hosts
from kazoo.security import ACL, Permissions, make_acl

from droveway import certificates
from droveway.errors import Refused

if TYPE_CHECKING:
    from oslo_config import cfg

_OWN_MACHINE: Final = ("localhost", "::1")


@dataclass(frozen=True)
class Access:
    """Holds the subjects of the certificates that may use nodes (`droveway.certificates.Identity.subject`)."""

    conductor: str
    """The subject of every conductor."""
    worker: str
    """The subject of a host's worker, with ``{host}`` in the place of the host's name."""

    def worker_of(self, host: str) -> str:
        """Return the subject of this host's worker."""
        return self.worker.replace("{host}", host)

    def of(self, path: str) -> list[ACL]:
        """Return the access list that this node is made with."""
        entries = [make_acl("x509", self.conductor, all=True)]
        match path.strip("/").split("/"):
            case [_] | [_, "moves", _, "epoch"]:
                entries.append(make_acl("world", "anyone", read=True))
            case [_, "hosts", host, "commands" | "inquiries", *_]:
                entries.append(make_acl("x509", self.worker_of(host), read=True))
            case [_, "hosts", host, "results" | "progress" | "answers" | "worker"]:
                entries.append(make_acl("x509", self.worker_of(host), read=True, create=True, delete=True))
            case [_, "hosts", host, "results" | "progress" | "answers" | "worker", _]:
                entries.append(make_acl("x509", self.worker_of(host), read=True, write=True))
        return entries


@dataclass(frozen=True)
class Protection:
    """The certificate that a daemon shows to ZooKeeper, and the access lists that its nodes are made with."""

    identity: certificates.Identity
    access: Access


def protection(conf: cfg.ConfigOpts, host: str | None = None) -> Protection | None:
    """Return how this daemon protects its session with ZooKeeper; None when the session is not protected.

    The daemon is the worker of ``host``, or a conductor where ``host`` is not given. Raises `droveway.errors.Refused`
    when

    * [zookeeper] tls is true, and [tls] is empty;
    * [zookeeper] tls is not set, [tls] is empty, and a server of ZooKeeper is on another machine;
    * [zookeeper] tls is not set, [tls] has a certificate, and every server of ZooKeeper is on this machine;
    * the certificate's subject is not the one that the configuration names for this daemon.
    """
    group = conf.zookeeper
    identity = certificates.load(conf)
    beyond = [name for name, _port in collect_hosts(group.hosts)[0] if not _is_own(name)]
    if identity is not None and group.tls is None and not beyond:
        raise Refused(
            f"[tls] is given, and ZooKeeper at {group.hosts} is on this machine, so [tls] alone does not turn TLS on "
            "for it: set [zookeeper] tls = true, or false to let every user of this machine command all hosts"
        )
    if not (bool(beyond) if group.tls is None else group.tls):
        return None
    if identity is None:
        why = "[zookeeper] tls is true" if group.tls else f"ZooKeeper at {beyond[0]} is beyond this machine"
        raise Refused(
            f"[tls] is empty and {why}: give certificate, key and authority, or set [zookeeper] tls = false to let "
            "everybody who reaches ZooKeeper command the hosts"
        )
    access = Access(group.conductor_identity, group.worker_identity)
    option = "conductor_identity" if host is None else "worker_identity"
    wanted = access.conductor if host is None else access.worker_of(host)
    if identity.subject != wanted:
        raise Refused(
            f"[tls] certificate {identity.certificate} is of {identity.subject}, and [zookeeper] {option} says "
            f"{wanted}: have one issued for that subject, or correct the option"
        )
    return Protection(identity, access)


def require_root(client: Any, root: str, access: Access | None) -> None:
    """Raise `droveway.errors.Refused` when the root node exists with another access list than it should have."""
    try:
        entries, _stat = client.retry(client.get_acls, root)
    except exceptions.NoNodeError:
        return  # the conductor that makes it gives it the right access list
    except exceptions.NoAuthError:
        raise Refused(
            f"ZooKeeper does not say who may write {root}, so this Droveway did not make it: {_mend(root)}"
        ) from None
    if access is None:
        if not any(_writes(entry) and entry.id.scheme == "world" for entry in entries):
            raise Refused(f"ZooKeeper has access lists on {root}: set [zookeeper] tls = true and give [tls]")
        return
    others = [entry.id for entry in entries if _writes(entry) and entry.id.id != access.conductor]
    if others:
        raise Refused(
            f"in ZooKeeper {root} may be written by {others[0].scheme}:{others[0].id} and not only by conductors "
            f"({access.conductor}): {_mend(root)}"
        )


def _writes(entry: ACL) -> bool:
    return bool(entry.perms & ~Permissions.READ)


def _mend(root: str) -> str:
    return (
        f"stop all daemons and say 'deleteall {root}' in zkCli.sh. Nothing is lost: a conductor makes {root} anew from "
        "the journal"
    )


def _is_own(name: str) -> bool:
    return name in _OWN_MACHINE or name.startswith("127.")
