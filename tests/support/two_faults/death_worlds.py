"""How a host dies and comes back, and what has to hold meanwhile and then."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Collection, Iterator
from typing import Final

import sqlalchemy as sa
from support.labs.operations import Stage, Workers
from support.two_faults import openstack, shelved, ways_out, world

from droveway.errors import DestinationFault, Parked, StepError
from droveway.lab import stopped
from droveway.persistence.nova.cell import Service
from droveway.wire.values import Direction

SOURCE: Final = "source"
DESTINATION: Final = "destination"
HOSTS: Final = (SOURCE, DESTINATION)
BOTH: Final = ("source+destination", "destination+source")
"""Both hosts of a move, in the order in which they are declared down, and in which they are back."""

RETURN: Final = "return"
"""The host that takes the place of a source that is dead."""
HOSTS_ELSEWHERE: Final = (DESTINATION, RETURN)
BOTH_ELSEWHERE: Final = ("destination+return", "return+destination")

OFF: Final = "off"
ON: Final = "on"
BACK: Final = (OFF, ON)
"""With its guests off, or with those running again that ran when it died."""

SURE: Final = "power is off, ticket 4711"

_SPARE: Final = "host3"
"""The only host that the source's cell has beside the source, where another takes its place."""


class Death:
    """One host of one server's move, or both, before they die and after it."""

    def __init__(self, lab: Stage, server: str, role: str, before: Collection[str] = ()) -> None:
        """``role``: one or two of `SOURCE`, `DESTINATION` and `RETURN`; ``before``: hosts that are dead already."""
        self.lab = lab
        self.server = server
        self.roles = role.split("+")
        self.watch = shelved.Watch(lab.root)
        self.workers: Workers | None = None
        self.hosts: list[str] = []
        """Their names, once they died."""
        self.before = list(before)
        self.ran: dict[str, list[str]] = {host: [] for host in before}
        """By host the servers whose guests ran there."""
        self.whole = False
        """Whether a host that lives on had each disk whole."""
        self.shown = False
        """Whether the dead host had shown its own right before the others' deletion, so that its copy counts."""

    def named(self) -> list[str]:
        """The hosts that are to die, or died; before a destination is chosen the one that most moves go to."""
        if self.hosts:
            return self.hosts
        with world.opened(self.lab.root / "journal.sqlite") as journal:
            found = journal.execute(
                "SELECT source_host, dest_host FROM moves WHERE server = ? ORDER BY created_at DESC LIMIT 1",
                (self.server,),
            ).fetchone()
        source, destination = tuple(found) if found is not None else ("host1", None)
        names = {SOURCE: source, DESTINATION: destination or "host2", RETURN: _SPARE}
        return [names[role] for role in self.roles]

    def dead(self) -> list[str]:
        """All hosts that are dead, in the order in which they are back."""
        return [*self.hosts, *self.before]

    def die(self) -> None:
        """The hosts are off, with all that ran on them, and somebody says so."""
        self.go_off()
        self.declare()

    def go_off(self) -> None:
        """The hosts are off, with all that ran on them, and nobody knows."""
        self.hosts = self.named()
        for host in self.hosts:
            if self.workers is not None:
                self.workers.stop(host)
            stopped.stop(self.lab.lab.layout, host)
            ran = [server for server in self.watch.servers if world.is_running(self.lab.root, host, server)]
            for server in ran:
                self.lab.lab.hypervisor(host).stop(server, grace=0.0, fence=_unfenced)
            self.ran[host] = ran
        self.whole = self.watch.is_whole(self.server, dead=self.dead())

    def declare(self) -> None:
        """Somebody made sure that each is off: in a lab that runs by its row, as the command waits for the lab."""
        for host in self.hosts:
            if self.workers is None:
                self.lab.cli("host", "down", host, "--i-made-sure", SURE)
                continue
            service = sa.update(Service).where(Service.host == host, Service.binary == "nova-compute")
            # Only the host's own cell has such a row.
            for database in self.lab.lab.cell_databases.values():
                with database.write() as session:
                    session.execute(service.values(disabled=True, disabled_reason=SURE, forced_down=True))


class Spot:
    """The probes that let the host die when a step comes to one phase, in a flow that they may turn back before.

    ``during``: of the host that carries the step out before its first effect, of the other one while it does.
    """

    def __init__(self, at: str, death: Death, *, turns: str = "", again: bool = False, declared: bool = True) -> None:
        """``turns``: the step that turns the flow back; ``again``: the second flow with this step is meant.

        ``declared``: whether somebody says so at once.
        """
        self._direction, self._step, self._phase = at.split(".")
        self._death = death
        self._die = death.die if declared else death.go_off
        self._turns = turns
        self._left = int(again)
        self._fired = threading.Lock()
        self._dying: threading.Thread | None = None

    def on_conductor(self, _move: str, step: str, direction: str, phase: str) -> None:
        """The conductor's probe."""
        if (step, direction, phase) == (self._turns, "execute", "before"):
            self._turns = ""
            raise StepError("the flow is turned back", code="not-begun")
        if self._turns or (step, direction) != (self._step, self._direction):
            return
        if self._left:
            self._left -= phase == "stored"
            return
        if phase == self._phase or (self._phase == "during" and phase == "after"):
            self._die_once()

    def on_worker(self, host: str, step: str, direction: Direction, _phase: str, _effect: str) -> None:
        """The probe of a host's worker, before each effect."""
        if self._dying is not None:
            if host in self._death.named():
                raise Parked("the host is off")
            return
        there = (step, direction, "during") == (self._step, self._direction, self._phase)
        if there and not self._turns and not self._left and self._fired.acquire(blocking=False):
            # Its worker is stopped by another thread: it waits for the action that asks here.
            self._dying = threading.Thread(target=self._die)
            self._dying.start()
            if host in self._death.named():
                raise Parked("the host is off")
            self._dying.join()

    def join(self) -> None:
        """Wait until the host is off, if it is to be."""
        if self._dying is not None:
            self._dying.join()

    def _die_once(self) -> None:
        if self._fired.acquire(blocking=False):
            self._die()


def judge(lab: Stage, death: Death, *, choice: str, back: str) -> str:
    """End the move by what it names, bring the host back, and say what is wrong; "" when nothing is."""
    return next(wrong(lab, death, choice, back), "")


def wrong(lab: Stage, death: Death, choice: str, back: str) -> Iterator[str]:
    """Each thing that is wrong while the move is ended, and then while each host comes back and pays."""
    server, watch, dead = death.server, death.watch, death.dead()
    named = " and ".join(dead)
    move = _moves(lab, server)[-1]
    if told := watch.trouble(server, ended=False, dead=dead, deleted=_is_deleted(lab, server)):
        yield f"{named} died: {told}"
    if stuck := ways_out.finish(lab, move, choice=choice):
        yield f"{named} dead: {stuck}"
        return
    _delete_images(lab)
    deleted = _is_deleted(lab, server)
    if told := watch.trouble(server, ended=True, dead=dead, deleted=deleted):
        yield f"{named} dead and the move ended: {told}"
    if death.whole and not deleted and not watch.is_whole(server, dead=[] if death.shown else dead):
        yield f"{named} dead, another host had each disk of the server whole, and none has any more"
    yield from _audited(lab, dead)
    while dead:
        host = dead.pop(0)
        yield from _back(lab, death, host, back)
        if told := watch.trouble(server, ended=True, dead=dead, deleted=deleted):
            yield f"{host} is back{f' and {dead[0]} is not' if dead else ''}: {told}"
        if dead:
            yield from _audited(lab, dead)
    if owed := ways_out.say(lab, "debt", "list", "-f", "value").out:
        yield f"{named} back and there are debts: {owed}"
    yield from _audited(lab)


def _back(lab: Stage, death: Death, host: str, back: str) -> Iterator[str]:
    """Start the host as it was, then its worker, and let it pay; then its own guests run again."""
    root = lab.root
    log = root / "guests.log"
    resumed = []
    kept = log.read_bytes()
    for server in death.ran[host] if back == ON else []:
        # It does not start where the disks are gone, or in use by the guest that runs elsewhere by now.
        with contextlib.suppress(DestinationFault):
            lab.lab.hypervisor(host).start(server, _unfenced)
            resumed.append(server)
    before = log.read_bytes()
    lab.cli("lab", "worker", "start", host)
    lab.cli("host", "enable", host)
    lab.cli("move", "resume")
    _delete_images(lab)
    after = log.read_bytes()[len(before) :].decode()
    if '"start"' in after:
        yield f"{host} is back, and a guest was started for that: {after}"
    at = {server: world.running_on(root, server) for server in death.watch.servers}
    if any(len(hosts) > 1 for hosts in at.values()):
        yield f"{host} is back and has paid, and guests run on {at}"
    for server in death.watch.servers:
        row = world.the_row(root, server)
        if row["deleted"] or row["host"] != host:
            continue
        if server in resumed and host not in at[server] and row["power_state"] == 1:
            yield f"{host} is back, and what it owed took the guest that is the server's own by now"
        if row["power_state"] == 1:
            yield from _started(lab, host, server)
    # That the host itself let a guest run beside another one until it had paid is the host's doing.
    log.write_bytes(kept)


def _started(lab: Stage, host: str, server: str) -> Iterator[str]:
    """Let the host, which is back, run the server's guest, as its own operator would.

    It may not start where a person has left the server's move as it was: then nobody said that it would.
    """
    try:
        lab.lab.hypervisor(host).start(server, _unfenced)
    except DestinationFault as error:
        if not is_left(lab, server):
            yield f"{host} is back, and the guest of the server that lives there does not start: {error}"


def is_left(lab: Stage, server: str) -> bool:
    """Whether a person has left the server's last move as it was."""
    found = [row for row in world.rows(lab.root / "journal.sqlite", "moves") if row["server"] == server]
    return bool(found) and max(found, key=lambda row: str(row["created_at"]))["error_code"] == "left-as-is"


def _delete_images(lab: Stage) -> None:
    """Do as the audit says of images that nobody needs any more: a shelved one is kept for a host that is dead."""
    for finding in json.loads(ways_out.say(lab, "audit", "-f", "json").out):
        if finding["kind"] == "image":
            openstack.does(lab, finding["mend"])


def _audited(lab: Stage, dead: Collection[str] = ()) -> Iterator[str]:
    """What the audit finds, without that a guest is off on a host that is dead, or an image is kept for one."""
    said = ways_out.say(lab, "audit", "-f", "value", "-c", "kind", "-c", "detail")
    for line in said.out.splitlines():
        if not any(f"is off on {host}, but" in line or f"its host {host} is declared down" in line for host in dead):
            yield f"the audit ended with {said.code} and finds: {line}"
    if said.code not in (0, 3) and not said.out:
        yield f"the audit ended with {said.code}: {said.error}"


def _moves(lab: Stage, server: str) -> list[str]:
    found = [row for row in world.rows(lab.root / "journal.sqlite", "moves") if row["server"] == server]
    return [str(row["id"]) for row in sorted(found, key=lambda row: str(row["created_at"]))]


def _is_deleted(lab: Stage, server: str) -> bool:
    """Whether its user deleted it, or has asked for that."""
    row = world.the_row(lab.root, server)
    return bool(row["deleted"]) or row["task_state"] == "deleting"


def _unfenced() -> None:
    """No move lets a host's own guests run."""
