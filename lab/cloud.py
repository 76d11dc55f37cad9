"""Reads the cloud file of a lab, and checks that it does not contradict itself."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
import yaml

from droveway.errors import Refused
from droveway.persistence.nova.objects import MIB_PER_GIB

AMOUNTS: Final = {"VCPU": "vcpus", "MEMORY_MB": "memory_mb", "DISK_GB": "disk_gb"}
"""Placement's resource classes and the keys of a host that give their totals."""

OFFLOADED: Final = "shelved_offloaded"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_TRAIT = re.compile(r"[A-Z][A-Z0-9_]*")
_RATIOS = {"VCPU": 4.0, "MEMORY_MB": 1.0, "DISK_GB": 1.0}

Positive = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
Natural = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Ratio = Annotated[float, msgspec.Meta(gt=0, le=1000)]
Scalar = str | int | float | bool


class Record(msgspec.Struct, frozen=True):
    """One mapping of the cloud file; a key without a field here is an error."""


class Options(Record, frozen=True):
    """The options of the whole lab; they are written into its droveway.conf."""

    allow_resize_to_same_host: bool = False
    max_attempts: Positive = 3
    cross_cell: bool = False
    """Whether servers may leave their cell."""
    cross_cell_weight: float = 1000000.0
    """Nova's `cross_cell_move_weight_multiplier`: positive prefers a server's present cell, negative others."""
    transfer: Literal["auto", "direct", "image"] = "auto"
    """How disks are copied into another cell."""


class Bridge(Record, frozen=True):
    """A bridge of a host to a physical network, and the bandwidth that it can guarantee, in kbit/s; 0: none."""

    physical_network: str
    egress_kbps: Natural = 0
    ingress_kbps: Natural = 0


class Network(Record, frozen=True):
    """A network of ports over a physical one."""

    physical_network: str


class Qos(Record, frozen=True):
    """A QoS policy: what is guaranteed to each of its ports, in kbit/s and in 1,000 packets a second; 0: nothing."""

    egress_kbps: Natural = 0
    ingress_kbps: Natural = 0
    kpps: Natural = 0


class Host(Record, frozen=True):
    """A hypervisor host: its capacity, its aggregates and what it can do."""

    vcpus: Positive = 10
    memory_mb: Positive = 8192
    disk_gb: Positive = 100
    az: str | None = None
    shared: str | None = None
    """Hosts that name the same directory share their servers' disks."""
    aggregates: tuple[str, ...] = ()
    traits: tuple[str, ...] = ()
    same_host_cold_migrate: bool = False
    allocation_ratio: dict[Literal["VCPU", "MEMORY_MB", "DISK_GB"], Ratio] = {}
    enabled: bool = True
    bandwidth: dict[str, Bridge] = {}
    """The bridges, by name."""
    kpps: Natural = 0
    """The packet rate that the host can guarantee, in 1,000 packets a second; 0: none."""

    def ratio(self, resource: str) -> float:
        """Return the host's allocation ratio for the resource class."""
        return next((value for name, value in self.allocation_ratio.items() if name == resource), _RATIOS[resource])

    def total(self, resource: str) -> int:
        """Return the host's amount of the resource class, in Placement's unit."""
        return int(getattr(self, AMOUNTS[resource]))


class Cell(Record, frozen=True):
    """A cell, with its hosts by name."""

    hosts: dict[str, Host]
    isolated: bool = False
    """Whether no worker outside the cell reaches the transfer ports of its hosts."""


class Flavor(Record, frozen=True):
    """A flavor; memory and swap in MiB, disks in GiB."""

    vcpus: Positive
    memory_mb: Positive
    root_gb: Natural
    ephemeral_gb: Natural = 0
    swap_mb: Natural = 0
    extra_specs: dict[str, Scalar] = {}


class Image(Record, frozen=True):
    """An image of `size_mb` MiB of real bytes."""

    size_mb: Positive = 16
    min_disk_gb: Natural = 0
    traits: tuple[str, ...] = ()


class Group(Record, frozen=True):
    """A server group."""

    policy: Literal["affinity", "anti-affinity", "soft-affinity", "soft-anti-affinity"]
    max_server_per_host: Positive = 1


class Aggregate(Record, frozen=True):
    """An aggregate of hosts; a host lists its aggregates by name."""

    metadata: dict[str, Scalar] = {}


class Port(Record, frozen=True):
    """A port of a server; the lab chooses its address."""

    network: str | None = None
    """The port's network; None for the lab's own one, which every host reaches."""
    qos: str | None = None
    format: Literal["groups", "legacy"] = "groups"
    """How Neutron shows what the port asks for; a Neutron without port-resource-request-groups uses legacy."""


class Volume(Record, frozen=True):
    """A volume of a server, in GiB; the one with `boot` is its root disk."""

    size_gb: Positive
    boot: bool = False
    delete_on_termination: bool = False
    """Whether it is deleted with its server."""


class Server(Record, frozen=True):
    """A server: it has a host, or a cell when it is shelved and so is on no host."""

    flavor: str
    host: str | None = None
    cell: str | None = None
    image: str | None = None
    ports: tuple[Port, ...] = ()
    volumes: tuple[Volume, ...] = ()
    state: Literal["active", "stopped", "shelved_offloaded"] = "active"
    group: str | None = None
    az: str | None = None
    """The availability zone that was asked for, which the server never leaves."""

    @property
    def boots_from_volume(self) -> bool:
        """Say whether its root disk is a volume."""
        return any(volume.boot for volume in self.volumes)

    @property
    def offloaded(self) -> bool:
        """Say whether it is shelved."""
        return self.state == OFFLOADED


class Quota(Record, frozen=True):
    """How many vCPUs (``cores``) and MiB of memory (``ram_mb``) all servers of a project may have together.

    None writes no limit for the resource into Nova's database. A project without a limit of its own has the default
    limit. If Nova's database has no default limit either, the group [quota] of the lab's droveway.conf counts. The lab
    is built with -1 there, so that such a project may have any number.
    """

    cores: Natural | None = None
    ram_mb: Natural | None = None


class Quotas(Record, frozen=True):
    """The default quotas, and those of the lab's one project, which replace them."""

    default: Quota = Quota()
    lab: Quota = Quota()


class Cloud(Record, frozen=True, kw_only=True):
    """A whole cloud file, checked."""

    hypervisor: Literal["sandbox", "libvirt"] = "sandbox"
    options: Options = Options()
    cells: dict[str, Cell]
    flavors: dict[str, Flavor]
    images: dict[str, Image] = {}
    aggregates: dict[str, Aggregate] = {}
    groups: dict[str, Group] = {}
    networks: dict[str, Network] = {}
    qos: dict[str, Qos] = {}
    quotas: Quotas = Quotas()
    servers: dict[str, Server] = {}

    def hosts(self) -> Iterator[tuple[str, str, Host]]:
        """Yield cell, name and host of every host."""
        for cell_name, cell in self.cells.items():
            for name, host in cell.hosts.items():
                yield cell_name, name, host


R = TypeVar("R", bound=Record)


def demo_cloud() -> Cloud:
    """Return the cloud of a lab that is made without a cloud file."""
    return read_cloud(demo_file("sandbox"))


def demo_file(hypervisor: str) -> Path:
    """Return the cloud file of the demonstration."""
    return Path(__file__).with_name("demo_cloud.yaml" if hypervisor == "sandbox" else f"demo_cloud_{hypervisor}.yaml")


def read_cloud(path: Path) -> Cloud:
    """Read and check a cloud file; raise `droveway.errors.Refused` naming the first thing that is wrong."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise Refused(f"the cloud file {path} cannot be read: {reason}; give --cloud a readable YAML file") from None
    return parse_cloud(text, str(path))


def parse_cloud(text: str, source: str) -> Cloud:
    """Check the text of a cloud file, whose name is `source`; raise `droveway.errors.Refused`."""
    try:
        data = yaml.load(text, Loader=_Loader)  # noqa: S506 - a subclass of the safe loader
    except yaml.YAMLError as error:
        raise Refused(f"the cloud file {source} is no valid YAML: {_one_line(error)}") from None
    try:
        cloud = _cloud(data)
        _check_hosts(cloud)
        _check_images_and_flavors(cloud)
        _check_networks(cloud)
        for name, server in cloud.servers.items():
            _check_server(cloud, name, server)
        _check_capacity(cloud)
        _check_groups(cloud)
    except _WrongError as error:
        raise Refused(f"the cloud file {source}: {error}") from None
    return cloud


def required_traits(cloud: Cloud, server: Server) -> set[str]:
    """Return the traits that the server's flavor and image ask of a host."""
    specs = cloud.flavors[server.flavor].extra_specs
    traits = {key.removeprefix("trait:") for key, value in specs.items() if value == "required" and key[:6] == "trait:"}
    return traits | set(cloud.images[server.image].traits if server.image else ())


def needs(flavor: Flavor, *, boots_from_volume: bool) -> dict[str, int]:
    """Return what a server of the flavor needs in Placement, as Nova counts it: no root disk for a boot volume."""
    swap_gb = -(-flavor.swap_mb // MIB_PER_GIB)
    disk = (0 if boots_from_volume else flavor.root_gb) + flavor.ephemeral_gb + swap_gb
    amounts = {"VCPU": flavor.vcpus, "MEMORY_MB": flavor.memory_mb, "DISK_GB": disk}
    return {resource: amount for resource, amount in amounts.items() if amount}


class _WrongError(Exception):
    """What is wrong in a cloud file."""


class _Loader(yaml.SafeLoader):
    """The safe loader, which also refuses a key that stands twice."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _value in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                continue
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key} stands twice", key_node.start_mark)
            seen.add(key)
        return dict(super().construct_mapping(node, deep))


def _one_line(error: yaml.YAMLError) -> str:
    return " ".join(str(error).split())


def _cloud(data: Any) -> Cloud:
    top = _mapping(data, "it")
    _known(top, Cloud, "it")
    for key in ("cells", "flavors"):
        if not top.get(key):
            raise _WrongError(f"{key} is missing; name at least one")
    return Cloud(
        hypervisor=_one_of(top.get("hypervisor", "sandbox"), ("sandbox", "libvirt"), "hypervisor"),
        options=_record(top.get("options"), Options, "options"),
        cells={name: _cell(name, cell) for name, cell in _named(top["cells"], "cell")},
        flavors=_records(top["flavors"], "flavor", Flavor),
        images=_records(top.get("images"), "image", Image),
        aggregates=_records(top.get("aggregates"), "aggregate", Aggregate),
        groups=_records(top.get("groups"), "group", Group),
        networks=_records(top.get("networks"), "network", Network),
        qos=_records(top.get("qos"), "qos", Qos),
        quotas=_quotas(top.get("quotas")),
        servers={name: _server(name, server) for name, server in _named(top.get("servers"), "server")},
    )


def _cell(name: str, data: Any) -> Cell:
    cell = _mapping(data, f"cell {name}")
    _known(cell, Cell, f"cell {name}")
    if not cell.get("hosts"):
        raise _WrongError(f"cell {name} has no hosts; name at least one")
    own = _convert({key: value for key, value in cell.items() if key != "hosts"} | {"hosts": {}}, Cell, f"cell {name}")
    return msgspec.structs.replace(own, hosts=_records(cell["hosts"], "host", Host))


def _server(name: str, data: Any) -> Server:
    what = f"server {name}"
    server = _mapping(data, what)
    _known(server, Server, what)
    for key, kind in (("ports", Port), ("volumes", Volume)):
        items = server.get(key) or []
        if not isinstance(items, list):
            raise _WrongError(f"{key} of {what} is no list; write  {key}: [{{}}]")
        server = server | {key: [_record(item, kind, f"one of {key} of {what}") for item in items]}
    return _convert(server, Server, what)


def _quotas(data: Any) -> Quotas:
    owners = _mapping(data, "quotas")
    _known(owners, Quotas, "quotas")
    return Quotas(**{owner: _record(quota, Quota, f"the quota of {owner}") for owner, quota in owners.items()})


def _records(data: Any, noun: str, kind: type[R]) -> dict[str, R]:
    return {name: _record(item, kind, f"{noun} {name}") for name, item in _named(data, noun)}


def _record(data: Any, kind: type[R], what: str) -> R:
    mapping = _mapping(data, what)
    _known(mapping, kind, what)
    return _convert(mapping, kind, what)


def _convert(mapping: dict[str, Any], kind: type[R], what: str) -> R:
    try:
        return msgspec.convert(mapping, type=kind)
    except msgspec.ValidationError as error:
        reason, _, where = str(error).partition(" - at ")
        place = where.rpartition("$")[2].strip(".`")
        raise _WrongError(f"{what}: {place + ': ' if place else ''}{reason[:1].lower()}{reason[1:]}") from None


def _mapping(data: Any, what: str) -> dict[Any, Any]:
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise _WrongError(f"{what} is no mapping of keys to values")
    return data


def _known(mapping: Mapping[Any, Any], kind: type[Record], what: str) -> None:
    known = [str(field.name) for field in msgspec.structs.fields(kind)]
    for key in mapping:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1)
            mend = f"did you mean {near[0]}?" if near else f"known are {', '.join(known) if known else 'none'}"
            raise _WrongError(f"{what} has the unknown key {key}; {mend}")


def _named(data: Any, noun: str) -> Iterator[tuple[str, Any]]:
    for name, item in _mapping(data, noun if noun.endswith("s") else f"{noun}s").items():
        if not isinstance(name, str):
            raise _WrongError(f"the name of {noun} {name} is no text as YAML reads it; put it in quotes")
        if not _NAME.fullmatch(name):
            raise _WrongError(f"{noun} {name} has no valid name; use letters, digits and . _ - (at most 63)")
        yield name, item


def _one_of(value: Any, choices: tuple[str, ...], what: str) -> Any:
    if value not in choices:
        raise _WrongError(f"{what} is {value}; it may be {' or '.join(choices)}")
    return value


def _look_up(name: str, known: Mapping[str, R], what: str) -> R:
    if name not in known:
        near = difflib.get_close_matches(name, list(known), n=1)
        mend = f"did you mean {near[0]}?" if near else f"known are {', '.join(known) or 'none'}"
        raise _WrongError(f"{what} {name}, which the file does not define; {mend}")
    return known[name]


def _check_hosts(cloud: Cloud) -> None:
    cell_of: dict[str, str] = {}
    for cell, name, host in cloud.hosts():
        if name in cell_of:
            raise _WrongError(f"host {name} stands in cell {cell_of[name]} and in cell {cell}; a host has one cell")
        cell_of[name] = cell
        for key, value in (("shared", host.shared), ("az", host.az)):
            if value is not None and not _NAME.fullmatch(value):
                raise _WrongError(f"host {name}: {key} {value} is no valid name; use letters, digits and . _ -")
        if host.same_host_cold_migrate and cloud.hypervisor == "libvirt":
            raise _WrongError(f"host {name} has same_host_cold_migrate, which libvirt cannot do; leave it out")
        _check_traits(host.traits, f"host {name}")
    named = {name for _, _, host in cloud.hosts() for name in host.aggregates}
    for name, aggregate in cloud.aggregates.items():
        if name not in named:
            raise _WrongError(f"aggregate {name} has no host; name it in the aggregates of one")
        if "availability_zone" in aggregate.metadata:
            raise _WrongError(f"aggregate {name} has the metadata availability_zone; give its hosts an az instead")


def _check_traits(traits: tuple[str, ...], what: str) -> None:
    for trait in traits:
        if not _TRAIT.fullmatch(trait):
            raise _WrongError(f"{what} has the trait {trait}; a trait is upper case, a new one begins with CUSTOM_")


def _check_images_and_flavors(cloud: Cloud) -> None:
    for name, image in cloud.images.items():
        _check_traits(image.traits, f"image {name}")
    largest = {resource: max(_room(host, resource) for _, _, host in cloud.hosts()) for resource in AMOUNTS}
    for name, flavor in cloud.flavors.items():
        for resource, amount in needs(flavor, boots_from_volume=True).items():
            if amount > largest[resource]:
                raise _WrongError(
                    f"flavor {name} fits no host: {amount} {resource}, the largest has {largest[resource]}"
                )


def _check_networks(cloud: Cloud) -> None:
    known = {bridge.physical_network for _, _, host in cloud.hosts() for bridge in host.bandwidth.values()}
    for name, network in cloud.networks.items():
        if network.physical_network not in known:
            raise _WrongError(
                f"network {name} has the physical network {network.physical_network}, to which no host has a bridge; "
                "name it in the bandwidth of one"
            )


def _check_ports(cloud: Cloud, name: str, server: Server) -> None:
    what = f"server {name}: a port"
    for port in server.ports:
        if port.network is None:
            if port.qos is not None:
                raise _WrongError(f"{what} has the qos {port.qos} and no network; name one that a host has a bridge to")
            continue
        network = _look_up(port.network, cloud.networks, f"{what} has the network")
        if port.qos is not None:
            policy = _look_up(port.qos, cloud.qos, f"{what} has the qos")
            if port.format == "legacy" and policy.kpps:
                raise _WrongError(
                    f"{what} asks for kpps, which the legacy format cannot tell; leave format or kpps out"
                )
        bridges = {
            bridge.physical_network
            for _, host_name, host in cloud.hosts()
            if host_name == server.host
            for bridge in host.bandwidth.values()
        }
        if server.host is not None and network.physical_network not in bridges:
            raise _WrongError(
                f"{what} is on network {port.network}, to which its host {server.host} has no bridge; name one in the "
                "bandwidth of the host"
            )


def _check_server(cloud: Cloud, name: str, server: Server) -> None:
    flavor = _look_up(server.flavor, cloud.flavors, f"server {name} has the flavor")
    if server.group is not None:
        _look_up(server.group, cloud.groups, f"server {name} is in the group")
    _check_root(cloud, name, server, flavor)
    if server.offloaded:
        _check_cell(cloud, name, server)
    else:
        _check_host(cloud, name, server)
    _check_ports(cloud, name, server)


def _check_cell(cloud: Cloud, name: str, server: Server) -> None:
    if server.host is not None:
        raise _WrongError(
            f"server {name} is {OFFLOADED} and has the host {server.host}; it is on none, so name its cell instead"
        )
    if server.cell is None:
        raise _WrongError(f"server {name} is {OFFLOADED} and has no cell; name the one that its rows are in")
    cell = _look_up(server.cell, cloud.cells, f"server {name} is in the cell")
    zones = {host.az for host in cell.hosts.values()}
    if server.az is not None and server.az not in zones:
        raise _WrongError(
            f"server {name} asks for the zone {server.az}, in which no host of cell {server.cell} is; change one of "
            "the two"
        )


def _check_host(cloud: Cloud, name: str, server: Server) -> None:
    if server.host is None:
        raise _WrongError(f"server {name} has no host; name the one that it is on")
    if server.cell is not None:
        raise _WrongError(
            f"server {name} has the host {server.host} and the cell {server.cell}; only one that is {OFFLOADED} has a "
            "cell, so leave it out"
        )
    hosts = {host_name: host for _, host_name, host in cloud.hosts()}
    host = _look_up(server.host, hosts, f"server {name} is on the host")
    if server.az is not None and server.az != host.az:
        raise _WrongError(
            f"server {name} asks for the zone {server.az} and is on host {server.host}, which is in "
            f"{host.az or 'no zone'}; change one of the two"
        )
    if lacking := sorted(required_traits(cloud, server) - set(host.traits)):
        raise _WrongError(f"server {name} needs the trait {lacking[0]}, which its host {server.host} has not")


def _check_root(cloud: Cloud, name: str, server: Server, flavor: Flavor) -> None:
    boots = sum(volume.boot for volume in server.volumes)
    if boots > 1:
        raise _WrongError(f"server {name} has {boots} boot volumes; leave boot: true on one")
    if server.image is None:
        if not boots:
            raise _WrongError(f"server {name} has neither an image nor a boot volume; give it one")
        return
    image = _look_up(server.image, cloud.images, f"server {name} has the image")
    if boots:
        raise _WrongError(f"server {name} has an image and a boot volume; leave one of the two")
    if flavor.root_gb and flavor.root_gb < max(image.min_disk_gb, -(-image.size_mb // MIB_PER_GIB)):
        raise _WrongError(
            f"server {name}: the root disk of flavor {server.flavor} ({flavor.root_gb} GB) is too small for the image "
            f"{server.image} ({image.size_mb} MB, min_disk_gb {image.min_disk_gb}); choose a larger flavor"
        )


def _room(host: Host, resource: str) -> int:
    return int(host.total(resource) * host.ratio(resource))


def _check_capacity(cloud: Cloud) -> None:
    for _, host_name, host in cloud.hosts():
        used = dict.fromkeys(AMOUNTS, 0)
        for name, server in cloud.servers.items():
            if server.host != host_name:
                continue
            wanted = needs(cloud.flavors[server.flavor], boots_from_volume=server.boots_from_volume)
            for resource, amount in wanted.items():
                used[resource] += amount
                # In Placement one consumer cannot have more than the total, whatever the ratio is.
                room = min(host.total(resource), _room(host, resource) - used[resource] + amount)
                if amount > room:
                    raise _WrongError(
                        f"server {name} does not fit on host {host_name}: it needs {amount} {resource} and {room} "
                        "are left; give the host more or put the server elsewhere"
                    )


def _check_groups(cloud: Cloud) -> None:
    for group_name, group in cloud.groups.items():
        members = [
            (name, server.host)
            for name, server in cloud.servers.items()
            if server.group == group_name and server.host is not None
        ]
        hosts = [host for _, host in members]
        if group.policy == "affinity" and len(set(hosts)) > 1:
            raise _WrongError(
                f"group {group_name} has affinity, and its servers are on {', '.join(sorted(set(hosts)))}"
            )
        for name, host in members:
            if group.policy == "anti-affinity" and hosts.count(host) > group.max_server_per_host:
                raise _WrongError(
                    f"group {group_name} allows {group.max_server_per_host} of its servers on a host, and {name} is "
                    f"one of {hosts.count(host)} on {host}"
                )
