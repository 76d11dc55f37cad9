"""After every single write of a lab's moves: does Placement know of all that the hosts really hold?

It hooks each write where it happens, in the thread that made it: Placement's requests, the commits of every database,
and what workers change on their hosts.  A look reads Placement's own tables and the hosts' guests and directories, and
knows nothing of moves but their ids.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final
from unittest import mock

from support.labs.shares import rows

from droveway.clients.embedded import placement
from droveway.lab.session import Lab
from droveway.persistence.database import Database
from droveway.workers.context import Context
from droveway.workers.directories import Directories, Directory
from droveway.workers.hypervisors.base import Hypervisor

GIB: Final = 1 << 30
UNIT: Final = {"VCPU": 1, "MEMORY_MB": 1, "DISK_GB": GIB}
"""How much of what is held makes one of Placement's units: disks are measured in bytes."""

Amounts = Counter[str]
"""Resource class → amount, DISK_GB in bytes."""

_GUESTS: Final = ("define", "undefine", "start", "stop", "connect_volume", "disconnect_volume", "plug", "unplug",
                  "create_disk", "grow_disk", "rebase_disk")  # fmt: skip
_DIRECTORIES: Final = ("create", "rename", "remove", "write_formats", "write_record", "unlink", "write_probe",
                       "remove_probe")  # fmt: skip

_ALLOCATIONS: Final = """
    SELECT consumers.uuid, root.name, resource_classes.name, sum(allocations.used)
      FROM allocations
      JOIN consumers ON consumers.uuid = allocations.consumer_id
      JOIN resource_providers provider ON provider.id = allocations.resource_provider_id
      JOIN resource_providers root ON root.id = provider.root_provider_id
      JOIN resource_classes ON resource_classes.id = allocations.resource_class_id
     GROUP BY 1, 2, 3
"""


_LIVE: Final = """
    SELECT uuid, vm_state, task_state, power_state FROM instances
     WHERE vm_state IN ('active', 'resized') AND deleted = 0 AND (task_state IS NULL OR task_state != 'deleting')
"""
_RUNNING: Final = 1
_TOUCHED: Final = (None, "resize_prep", "resize_migrating")


class Sampler:
    """What was looked at, and what was wrong; `watching` looks after every write of the block.

    A consumer never holds two hosts, and what a host holds of a server is allocated there to the server or to a move of
    it: so a provider's usage, which is the sum of its allocations, is never below what is held.  And no guest is off
    while its rows say what would make a restarting nova-compute start it.
    """

    def __init__(self, lab: Lab) -> None:
        self.writes: Counter[str] = Counter()
        """How many writes of each sort were followed by a look."""
        self.wrong: list[str] = []
        """One sentence for each look at which a promise did not hold."""
        self.lab = lab
        self._lock = threading.Lock()
        self._hosts = {host: lab.hypervisor(host) for host in sorted(lab.identity.hosts)}
        self._stores: dict[Path, list[str]] = {}
        for host, hypervisor in self._hosts.items():
            self._stores.setdefault(hypervisor.instances.resolve(), []).append(host)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Look after every write until the block ends."""
        with contextlib.ExitStack() as stack:

            def hook(owner: type, name: str, wrap: Callable[[Any], Any]) -> None:
                stack.enter_context(mock.patch.object(owner, name, wrap(getattr(owner, name))))

            hook(placement._Transport, "send", self._after_request)
            for name in ("write", "begin"):
                hook(Database, name, self._after_commit)
            for name in _GUESTS:
                hook(type(next(iter(self._hosts.values()))), name, functools.partial(self._after_effect, name))
            for name in _DIRECTORIES:
                hook(Directories, name, functools.partial(self._after_effect, name))
            for name in ("write", "unlink"):
                hook(Directory, name, functools.partial(self._after_effect, name))
            hook(Context, "effect", self._before_effect)
            yield

    def look(self, sort: str, write: str) -> None:
        """Compare what Placement says with what the hosts hold."""
        with self._lock:
            self.writes[sort] += 1
            self.wrong += [f"after {write}: {text}" for text in self.found_wrong()]

    def found_wrong(self) -> Iterator[str]:
        """Tell what does not hold now, one sentence each."""
        allocations = self._allocations()
        for consumer, hosts in allocations.items():
            if len(hosts) > 1:
                yield f"consumer {consumer} holds {' and '.join(sorted(hosts))}"
        yield from self._not_covered(allocations)
        yield from self._touchable()

    def _touchable(self) -> Iterator[str]:
        """Servers that a restarting nova-compute would start: off, and active without a move, or on by power_state."""
        running = {guest.server for host in self._hosts.values() for guest in host.guests() if guest.running}
        for cell in self.lab.cells.names():
            for server, vm_state, task_state, power_state in rows(self.lab.layout.cell(cell), _LIVE):
                if server in running:
                    continue
                if vm_state == "active" and task_state in _TOUCHED:
                    yield f"the guest of server {server} is off while its task_state is {task_state}"
                if power_state == _RUNNING:
                    yield f"the guest of server {server} is off while its rows say that it runs"

    def _not_covered(self, allocations: dict[str, dict[str, Amounts]]) -> Iterator[str]:
        """What hosts hold of a server beyond the allocations there of the server and its migrations."""
        owners = self.owners()
        known: dict[str, dict[str, Amounts]] = defaultdict(lambda: defaultdict(Counter))
        for consumer, hosts in allocations.items():
            for host, amounts in hosts.items():
                known[owners.get(consumer, consumer)][host] += amounts
        for host in self._hosts:
            yield from _lacking(self._guests(host), known, [host])
        for path, sharing in self._stores.items():
            yield from _lacking(_disks(path), known, sharing)

    def _guests(self, host: str) -> dict[str, Amounts]:
        """Of each server, what its guest is defined with on the host."""
        return {
            guest.server: Counter({"VCPU": guest.vcpus, "MEMORY_MB": guest.memory_mb})
            for guest in self._hosts[host].guests()
        }

    def _allocations(self) -> dict[str, dict[str, Amounts]]:
        """Consumer → host → amounts."""
        found: dict[str, dict[str, Amounts]] = defaultdict(lambda: defaultdict(Counter))
        for consumer, host, name, used in rows(self.lab.layout.placement, _ALLOCATIONS):
            found[consumer][host][name] = used * UNIT.get(name, 1)
        return found

    def owners(self) -> dict[str, str]:
        """The server of each move, whose id is the consumer of the source's allocation."""
        return dict(rows(self.lab.layout.journal, "SELECT id, server FROM moves"))

    def _after_request(self, send: Callable[..., Any]) -> Callable[..., Any]:
        def sent(transport: Any, request: Any, *args: Any, **options: Any) -> Any:
            response = send(transport, request, *args, **options)
            if request.method != "GET":
                self.look("Placement requests", f"{request.method} {request.path_url}")
            return response

        return sent

    def _after_commit(self, transaction: Callable[[Database], Any]) -> Callable[[Database], Any]:
        @contextlib.contextmanager
        def committed(database: Database) -> Iterator[Any]:
            with transaction(database) as opened:
                yield opened
            name = Path(str(database.engine.url.database)).stem
            self.look("commits", f"a commit of {name}")

        return committed

    def _after_effect(self, name: str, change: Callable[..., Any]) -> Callable[..., Any]:
        def changed(self_: Hypervisor | Directories | Directory, *args: Any, **options: Any) -> Any:
            result = change(self_, *args, **options)
            where = self_.where if isinstance(self_, Directory) else self_.instances
            self.look("effects on hosts", f"{name} in {where}")
            return result

        return changed

    def _before_effect(self, effect: Callable[[Context, str], None]) -> Callable[[Context, str], None]:
        def announced(context: Context, name: str) -> None:
            effect(context, name)
            self.look("points between two effects", f"what came before {name} of {context.command.action}")

        return announced


def _lacking(held: dict[str, Amounts], known: dict[str, dict[str, Amounts]], hosts: list[str]) -> Iterator[str]:
    """What is held of each server on these hosts, which share it, beyond what is allocated for that server there."""
    for server, amounts in held.items():
        allocated: Amounts = Counter()
        for host in hosts:
            allocated.update(known[server][host])
        for name in amounts - allocated:
            yield (
                f"{' and '.join(hosts)} hold {amounts[name] / UNIT[name]:g} of {name} for server {server}, and "
                f"Placement knows of {allocated[name] / UNIT[name]:g}"
            )


def _disks(instances: Path) -> dict[str, Amounts]:
    """Of each server, the sizes of all disks in whatever directory bears its id."""
    found: dict[str, Amounts] = defaultdict(Counter)
    for directory in instances.iterdir():
        server = directory.name[:36]
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            for disk in directory.iterdir():
                if disk.name == "disk" or disk.name.startswith(("disk.eph", "disk.swap")):
                    found[server]["DISK_GB"] += disk.stat().st_size
    return found
