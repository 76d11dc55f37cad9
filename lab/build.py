"""Makes labs and removes them."""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from droveway.errors import Refused
from droveway.lab import cloud, daemons, disks, layout, libvirt_hosts, lock, marks, packages, servers, topology
from droveway.lab.layout import Identity, LabHost, Layout
from droveway.lab.session import Lab
from droveway.persistence.database import Database, sqlite_url
from droveway.persistence.journal import migrate
from droveway.persistence.journal.tables import Counter
from droveway.persistence.nova import quotas
from droveway.persistence.nova.api import ApiBase
from droveway.persistence.nova.cell import CellBase
from droveway.persistence.restored import INCARNATION, new_incarnation
from droveway.workers.directories import Directories

ShowProgress = Callable[[Iterable[str]], Iterable[str]]
"""Shows the operator how many servers of the lab are built.

The function gets the names of all servers, and yields them one by one. The lab builds a server before it asks for the
next name, so the function can count the servers that are built.
"""


def create(root: Path, spec: cloud.Cloud, each: ShowProgress = iter) -> Lab:
    """Build the lab and start its guests; when that fails, everything is removed again.

    ``each`` shows the progress, and the servers are built in the order in which it yields their names.

    Raises `droveway.errors.Refused` when the directory is taken or cannot be written, or the machine lacks what the
    hypervisor needs.
    """
    packages.require()
    if spec.hypervisor == "libvirt":
        libvirt_hosts.require_packages()
    files = Layout(root.absolute())
    made = _make_root(files)
    with lock.taken(files):
        lab = None
        try:
            lab = _begin(files, spec)
            _build(lab, spec, each)
            with marks.Databases(files, lab.identity.hosts) as databases:
                databases.record()
            layout.write_identity(files, lab.identity)
        except BaseException as error:
            if lab is not None:
                _stop(lab)
                layout.remove_socket_directory(lab.identity)
            _empty(files, keep_root=not made)
            if isinstance(error, OSError):
                raise Refused(f"the lab {root} cannot be made: {error.strerror} ({error.filename or root})") from None
            raise
    return lab


def destroy(root: Path) -> int:
    """Stop the lab's guests and daemons, remove the lab, and return how many guests ran.

    Raises `droveway.errors.Refused` when the directory is no lab, or a command uses it.
    """
    files = Layout(root.absolute())
    lab = Lab(files, layout.read_identity(files, unfinished=True))
    try:
        with lock.taken(files):
            stopped = _stop(lab)
            lab.close()
            layout.remove_socket_directory(lab.identity)
            # The identity file goes last. Without it the directory is no lab, and a killed destroy cannot be repeated.
            _empty(files, keep_root=False, last=files.identity)
    except OSError as error:
        raise Refused(f"the lab {root} cannot be removed: {error.strerror} ({error.filename})") from None
    return stopped


def stop_guests(lab: Lab) -> int:
    """Power off every guest of the lab, and return how many ran."""
    stopped = 0
    for host in lab.identity.hosts:
        hypervisor = lab.hypervisor(host)
        for guest in list(hypervisor.guests()):
            if guest.running:
                hypervisor.stop(guest.server, grace=0.0, fence=lambda: None)
                stopped += 1
    return stopped


def _stop(lab: Lab) -> int:
    """End the lab's guests and daemons, and return how many guests ran."""
    if lab.identity.hypervisor == "libvirt":
        return daemons.stop(lab.layout, lab.identity)
    return stop_guests(lab)


def _make_root(files: Layout) -> bool:
    """Make the lab's directory, unless it exists and is empty; return whether it was made.

    A lab in it that was never finished is removed first.
    """
    root = files.root
    if files.identity.exists():
        if layout.read_identity(files, unfinished=True).complete:
            raise Refused(f"{root} is a lab already: droveway lab destroy {root} removes it, or name another directory")
        destroy(root)
    try:
        root.mkdir(parents=True)
    except FileExistsError:
        if not root.is_dir() or any(root.iterdir()):
            raise Refused(f"{root} exists and is not empty: name a directory that is new or empty") from None
        return False
    except OSError as error:
        raise Refused(f"the directory {root} cannot be made: {error.strerror}; name one that you may write") from None
    return True


def _empty(files: Layout, *, keep_root: bool, last: Path | None = None) -> None:
    for path in sorted(files.root.iterdir()):
        if path == last:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    if last is not None:
        last.unlink(missing_ok=True)
    if not keep_root:
        files.root.rmdir()


def _begin(files: Layout, spec: cloud.Cloud) -> Lab:
    """Write the file that makes the directory an unfinished lab, and return the lab.

    The returned object counts as complete, so that its parts can be opened. The file says so once everything is made.
    """
    hosts = {
        name: LabHost(
            cell=cell,
            memory_mb=host.memory_mb,
            shared=host.shared,
            same_host_cold_migrate=host.same_host_cold_migrate,
            isolated=spec.cells[cell].isolated,
        )
        for cell, name, host in spec.hosts()
    }
    identity = Identity(
        version=layout.VERSION,
        hypervisor=spec.hypervisor,
        sockets=str(layout.make_socket_directory(hosts, spec.hypervisor)),
        project=uuid.uuid4().hex,
        user=uuid.uuid4().hex,
        network=str(uuid.uuid4()),
        hosts=hosts,
        complete=True,
    )
    layout.write_identity(files, msgspec.structs.replace(identity, complete=False))
    return Lab(files, identity)


def _build(lab: Lab, spec: cloud.Cloud, each: ShowProgress) -> None:
    _make_directories(lab)
    if spec.hypervisor == "libvirt":
        daemons.start(lab.layout, lab.identity)
    _write_configuration(lab, spec)
    _make_databases(lab, spec)
    _make_images(lab, spec)
    for name in each(spec.servers):
        servers.create(lab, name, spec.servers[name])


def _make_directories(lab: Lab) -> None:
    files = lab.layout
    for folder in (files.cells, files.images, files.volumes, files.shared, files.hosts):
        folder.mkdir()
    for name, host in lab.identity.hosts.items():
        files.host(name).mkdir()
        instances = files.host(name) / "instances"
        if host.shared is not None:
            (files.shared / host.shared).mkdir(exist_ok=True)
            # A relative link lets the lab be moved or copied.
            instances.symlink_to(os.path.relpath(files.shared / host.shared, files.host(name)))
        Directories(instances).ensure()


def _write_configuration(lab: Lab, spec: cloud.Cloud) -> None:
    options = spec.options
    lab.layout.configuration.write_text(
        "[scheduler]\n"
        f"max_attempts = {options.max_attempts}\n"
        f"allow_resize_to_same_host = {str(options.allow_resize_to_same_host).lower()}\n"
        f"cross_cell_move_weight_multiplier = {options.cross_cell_weight}\n"
        f"\n[cross_cell]\nallowed = {str(options.cross_cell).lower()}\ntransfer = {options.transfer}\n"
        # A lab has one project. Nova's default quotas would allow it a few servers.
        f"\n[quota]\ncores = {quotas.UNLIMITED}\nram = {quotas.UNLIMITED}\n",
        encoding="utf-8",
    )


def _make_databases(lab: Lab, spec: cloud.Cloud) -> None:
    for path in (lab.layout.api, lab.layout.journal, *map(lab.layout.cell, spec.cells)):
        path.touch()
    ApiBase.metadata.create_all(lab.api.engine)
    journal = Database(sqlite_url(lab.layout.journal))
    migrate.sync(journal)
    with journal.write() as session:
        session.add(Counter(name=INCARNATION, value=new_incarnation()))
    journal.close()
    for name, network in spec.networks.items():
        lab.cloud.network.create_network(name, network.physical_network)
    for name, policy in spec.qos.items():
        amounts = {"egress_kbps": policy.egress_kbps, "ingress_kbps": policy.ingress_kbps, "kpps": policy.kpps}
        lab.cloud.network.guarantee(lab.cloud.network.create_policy(name), **amounts)
    owner = topology.Owner(lab.identity.project, lab.identity.user)
    with lab.api.write() as session:
        topology.add_cells(session, spec.cells)
        topology.add_flavors(session, spec.flavors)
        topology.add_groups(session, spec.groups, owner)
        topology.add_quotas(session, spec.quotas, owner)
        aggregates = topology.add_aggregates(session, spec)
    members = topology.aggregates(spec)
    for cell_name, cell in spec.cells.items():
        database = lab.cells.database(cell_name)
        CellBase.metadata.create_all(database.engine)
        with database.write() as session:
            nodes = topology.add_hosts(session, cell.hosts, spec.hypervisor)
        for name, host in cell.hosts.items():
            uuids = [aggregates[aggregate] for aggregate, hosts in members.items() if name in hosts]
            topology.add_provider(lab.cloud.placement, name, nodes[name], host, uuids)
            topology.add_network_providers(lab.cloud.placement, name, nodes[name], host)
            lab.cloud.add_network_host(name, topology.devices(host))


def _make_images(lab: Lab, spec: cloud.Cloud) -> None:
    with tempfile.TemporaryDirectory(dir=lab.layout.images) as folder:
        for name, image in spec.images.items():
            path = Path(folder, name)
            disks.make_image(path, name=name, size_mb=image.size_mb, hypervisor=spec.hypervisor)
            image_id = str(uuid.uuid4())
            traits = {f"trait:{trait}": "required" for trait in image.traits}
            lab.cloud.images.create(image_id, name=name, min_disk_gb=image.min_disk_gb, properties=traits)
            lab.cloud.images.upload(image_id, path)
