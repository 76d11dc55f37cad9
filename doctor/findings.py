"""Lists all that the doctor can find, with how bad each is and what mends it."""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from oslo_config import cfg

    from droveway.clients.zookeeper import Coordination
    from droveway.engines.site.installation import Installation
    from droveway.errors import DrovewayError


class Level(enum.StrEnum):
    """How bad a finding is."""

    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"


class Meaning(NamedTuple):
    """One kind of finding, in sentences for operators."""

    level: Level
    means: str
    mend: str


FINE: Final = "fine"

MEANINGS: Final[dict[str, Meaning]] = {
    FINE: Meaning(Level.OK, "What was looked at is as it should be.", "Nothing."),
    "check-broken": Meaning(
        Level.FAILURE,
        "One check of the doctor failed with an unexpected error; the other checks went on.",
        "Read the detail, mend what it names, and ask again: droveway doctor. Please report it.",
    ),
    "configuration-open": Meaning(
        Level.FAILURE,
        "The configuration holds passwords and everybody on this machine may read or change it. No daemon starts so.",
        "Let it belong to root and the group droveway, with mode 0640.",
    ),
    "zookeeper-away": Meaning(
        Level.FAILURE,
        "No server of the ensemble answered this machine. Moves wait, and go on once one does.",
        "Start ZooKeeper, open the way to it, or correct [zookeeper] hosts.",
    ),
    "zookeeper-refused": Meaning(
        Level.FAILURE,
        "ZooKeeper cannot be used with the protection that the configuration asks for: no daemon starts.",
        "The detail says what is wrong with the certificate, an access list or [zookeeper], and how to mend it.",
    ),
    "zookeeper-member-away": Meaning(
        Level.WARNING,
        "A server that [zookeeper] hosts names does not answer. When most of them are away, all moves wait.",
        "Start that server, or take it out of [zookeeper] hosts.",
    ),
    "zookeeper-alone": Meaning(
        Level.WARNING,
        "ZooKeeper is one server: while it is down, all moves wait. Nothing is lost by that.",
        "Add two servers as docs/three-zookeepers.rst says, and name all three in [zookeeper] hosts.",
    ),
    "zookeeper-open": Meaning(
        Level.WARNING,
        "Everybody who reaches ZooKeeper may write what Droveway keeps there, commands for hosts included.",
        "Let only conductors and hosts reach ZooKeeper's ports: use a firewall or access lists.",
    ),
    "zookeeper-plain": Meaning(
        Level.WARNING,
        "There is a certificate, and [zookeeper] tls = false: connections to ZooKeeper are not encrypted, and whoever "
        "reaches ZooKeeper can command every host. On a machine where ZooKeeper runs, every user reaches it.",
        "Let ZooKeeper have a certificate and speak TLS alone, then set [zookeeper] tls = true on every machine.",
    ),
    "database-away": Meaning(
        Level.FAILURE,
        "A database cannot be used; the detail says which and why. Moves wait until it answers.",
        "Start the database, or correct its URL: [journal], [api_database], or Nova's table of cells.",
    ),
    "super-conductor": Meaning(
        Level.WARNING,
        "[cross_cell] allowed is true, so servers may leave their cell, and a super conductor of Nova is up. The super "
        "conductor would break a move between cells when a user confirms, reverts or deletes the server through Nova. "
        "So Droveway refuses moves between cells while the super conductor is up.",
        "Stop that nova-conductor for as long as servers move between cells, or set [cross_cell] allowed = false.",
    ),
    "cell-down": Meaning(
        Level.WARNING,
        "A person declared the cell down: no move waits for the cell, and no move goes there.",
        "Once the cell is back: droveway cell up CELL. After that start its nova-computes.",
    ),
    "cell-renamed": Meaning(
        Level.FAILURE,
        "A move that has not ended, or a debt, names a cell that Nova does not know: somebody has renamed it. While a "
        "move does, no conductor starts. A debt stays unpaid.",
        "Give the cell its name back: nova-manage cell_v2 update_cell --cell_uuid ID --name NAME. Rename a cell only "
        "when no move is in it.",
    ),
    "host-twice": Meaning(
        Level.FAILURE,
        "Two cells have a host of one name. Commands go to a worker by its host's name alone, so they might reach the "
        "other machine. Droveway moves no server from or to a host of that name.",
        "If one of the two is a service that no machine has any more: openstack compute service delete ID. If there "
        "are two machines, give one of them another name.",
    ),
    "schema-other": Meaning(
        Level.FAILURE,
        "The journal has the schema of another release, so no daemon of this one starts.",
        "An older schema: droveway db sync. A newer one: install the release that made it.",
    ),
    "flow-unknown": Meaning(
        Level.FAILURE,
        "The journal has running flows that this release does not know. Conductors of this release leave those flows "
        "to conductors of the release that began them.",
        "Keep a conductor of the release that began those flows until the flows have ended: droveway move list shows "
        "them.",
    ),
    "clock-off": Meaning(
        Level.FAILURE,
        "This machine's clock is off by more than five minutes from that of the journal's database.",
        "Let both machines follow NTP. On each machine, timedatectl tells whether it does.",
    ),
    "clock-drifts": Meaning(
        Level.WARNING,
        "This machine's clock is some seconds off from that of the journal's database.",
        "Let both machines follow NTP. On each machine, timedatectl tells whether it does.",
    ),
    "service-away": Meaning(
        Level.FAILURE,
        "Placement, Neutron, Cinder, Glance or Keystone gave no answer, or refused a request that moves make.",
        "Read the detail: start the service, or correct its group of the configuration, its user and password.",
    ),
    "extension-missing": Meaning(
        Level.FAILURE,
        "Neutron lacks the extension binding-extended: no server that has ports is resized or migrated.",
        "Enable ml2 as Neutron's core plugin (core_plugin in its configuration), then restart Neutron.",
    ),
    "certificate-none": Meaning(
        Level.WARNING,
        "[tls] is empty: this machine cannot prove to ZooKeeper or to another host who it is.",
        "Have a certificate issued for this machine and name it in [tls].",
    ),
    "certificate-wrong": Meaning(
        Level.FAILURE,
        "The certificate of [tls] cannot be used: no daemon starts with it.",
        "The detail names the file and the mend.",
    ),
    "certificate-expires": Meaning(
        Level.WARNING,
        "The certificate of [tls] expires within 14 days. After that no other machine trusts this one.",
        "Renew it and put it in the place of the old one. Daemons read it for each new connection.",
    ),
    "worker-away": Meaning(
        Level.WARNING,
        "A host that Nova knows has no worker that is up: no server can be moved to or from that host.",
        "On that host: systemctl start droveway-worker. If the host is off for good, droveway debt list shows the "
        "clean-ups that moves still expect from it.",
    ),
    "worker-other": Meaning(
        Level.WARNING,
        "The worker of a host is of another release than this machine's Droveway.",
        "Upgrade Droveway on the machine that has the older release, then restart the daemons of that machine.",
    ),
    "level-pinned": Meaning(
        Level.WARNING,
        "The workers that are up know newer commands than conductors send, because the option worker of "
        "[upgrade_levels] holds conductors back. Requests that need the newer commands are refused.",
        "Once no host has an older worker, remove the option worker from [upgrade_levels], on every conductor's "
        "machine, then: systemctl restart droveway-conductor.",
    ),
    "worker-lacks": Meaning(
        Level.FAILURE,
        "The worker of a host lacks actions that moves of this release ask of it.",
        "Upgrade Droveway on that host, then there: systemctl restart droveway-worker.",
    ),
    "worker-untrue": Meaning(
        Level.FAILURE,
        "The worker of a host says something of itself that cannot be true. No server is moved to or from that host.",
        "Stop the worker on that host, and find out who else has the host's certificate. Give the host a new "
        "certificate before you start its worker again.",
    ),
    "hypervisor-away": Meaning(
        Level.FAILURE,
        "The hypervisor of this host does not answer its worker.",
        "Start it on this host; for libvirt: systemctl start libvirtd.",
    ),
    "space-low": Meaning(
        Level.WARNING,
        "A file system that the worker of this host writes to has less than a tenth of its room left.",
        "Make room there, or keep servers away from the host.",
    ),
    "space-none": Meaning(
        Level.FAILURE,
        "A file system that the worker of this host writes to has less than 1 GiB left, or is not there.",
        "Make room there or mount it; until then keep servers away from the host.",
    ),
    "nova-confirms": Meaning(
        Level.WARNING,
        "Nova's resize_confirm_window is set, or nova.conf cannot be read as a configuration. If the window is set, a "
        "periodic task of Nova confirms moves whatever Droveway's policy is.",
        "Set resize_confirm_window = 0 in this host's nova.conf and restart nova-compute.",
    ),
}
"""Every code that a check gives. `docs/reference/findings.rst` is made of this table."""


@dataclasses.dataclass(frozen=True)
class Finding:
    """What one check says of one thing."""

    code: str
    subject: str
    """What was looked at: a database, a service, a host, a file ..."""
    detail: str
    """One sentence on what was found; no secret."""

    @property
    def level(self) -> Level:
        """Return how bad it is."""
        return MEANINGS[self.code].level

    @property
    def mend(self) -> str:
        """Return what to do about it."""
        return MEANINGS[self.code].mend


@dataclasses.dataclass(frozen=True)
class Examined:
    """The installation that the checks examine, as seen from this machine."""

    conf: cfg.ConfigOpts
    site: Installation
    session: Coordination | None
    """The session with ZooKeeper; None when there is none."""
    why: DrovewayError | None = None
    """Why there is no session."""
    host: str = ""
    """The host whose certificate the session uses; empty when the session uses a conductor's certificate.

    A session with a host's certificate cannot read the ZooKeeper nodes of other hosts.
    """
