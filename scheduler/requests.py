"""Says what a move asks of a host, and makes Placement's query of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from droveway.clients.port_resources import PortResources
from droveway.conf import scheduler
from droveway.persistence.nova.objects import MIB_PER_GIB

if TYPE_CHECKING:
    from oslo_config import cfg

MAX_RESULTS: Final = 1000
"""How many candidates Placement is asked for; Nova's `max_placement_results`."""

DISABLED_TRAIT: Final = "COMPUTE_STATUS_DISABLED"

_RESOURCES = re.compile(r"resources([a-zA-Z0-9_-]{0,64}):(.+)")
_TRAIT = re.compile(r"trait([a-zA-Z0-9_-]{0,64}):(.+)")


@dataclass(frozen=True)
class ServerGroup:
    """A server's group as its request spec has it; `droveway.scheduler.hosts` reads its members."""

    uuid: str
    policy: str
    max_server_per_host: int


@dataclass(frozen=True)
class Rules:
    """The options of [scheduler] that the choice of a host reads; see `droveway.conf.scheduler`."""

    isolated_aggregates: bool = False
    """Whether aggregates are kept for servers that require their traits."""
    tenant_isolation: bool = True
    """Whether aggregates are kept for servers of the projects that their metadata names."""
    multipliers: Mapping[str, float] = field(default_factory=dict)
    """How much each weigher counts, by the name of Nova's option; the option's default where none is given."""


def rules(options: cfg.ConfigOpts.GroupAttr) -> Rules:
    """Return the configured rules; ``options`` is the group [scheduler]."""
    names = [f"{name}_weight_multiplier" for name in scheduler.WEIGHED]
    return Rules(
        options.enable_isolated_aggregate_filtering,
        options.enable_tenant_isolation,
        {name: options[name] for name in names},
    )


@dataclass(frozen=True, kw_only=True)
class MoveRequest:
    """What a move asks of the host that the server goes to.

    ``flavor`` is the data of a Flavor object, ``request_spec`` a whole RequestSpec object.
    """

    server: str
    name: str
    """What the operator calls the server."""
    kind: str
    flavor: Mapping[str, Any]
    request_spec: Mapping[str, Any]
    source_cell: str
    cells: Mapping[str, str]
    """Cell → the reason why this server may not go there, or an empty string when it may.

    Cells to which the request itself does not lead are left out.
    """
    source_host: str
    """Empty for a server that is on no host."""
    boot_from_volume: bool
    ports: Sequence[PortResources] = ()
    """The server's ports that ask for resources, each with what it asks for."""
    target_host: str | None = None
    allow_same_host: bool = False
    max_attempts: int = 3
    rules: Rules = field(default_factory=Rules)

    def place(self, cell: str, host: str) -> str:
        """Return the host's name for people, as the function `place` makes it."""
        return place(self.source_cell, cell, host)

    def is_source(self, cell: str, host: str) -> bool:
        """Tell whether that is the host that the server is on."""
        return (cell, host) == (self.source_cell, self.source_host)

    @property
    def zone(self) -> str | None:
        """Return the availability zone that the server's owner asked for, which the server never leaves."""
        return self._spec.get("availability_zone") or None

    @property
    def project(self) -> str:
        """Return the id of the project that the server belongs to."""
        return str(self._spec.get("project_id") or "")

    @property
    def group(self) -> ServerGroup | None:
        """Return the server's group; None where it is in no group."""
        found = _data(self._spec.get("instance_group"))
        if not found:
            return None
        # Groups made before the policy had rules keep a list of one policy.
        policy = found.get("policy") or next(iter(found.get("policies") or ()), "")
        rules = found.get("_rules") or {}
        return ServerGroup(found["uuid"], policy, int(rules.get("max_server_per_host", 1)))

    @property
    def extra_specs(self) -> Mapping[str, Any]:
        """Return the flavor's extra specs."""
        return self.flavor.get("extra_specs") or {}

    @property
    def required_traits(self) -> set[str]:
        """Return the traits that the server's flavor or image requires of its host."""
        properties = _data(_data(self._spec.get("image")).get("properties"))
        return _traits(self.extra_specs, "", "required") | set(properties.get("traits_required") or ())

    @property
    def forbidden_traits(self) -> set[str]:
        """Return the traits that the server's flavor forbids; in Nova an image cannot forbid a trait."""
        return _traits(self.extra_specs, "", "forbidden")

    @property
    def _spec(self) -> Mapping[str, Any]:
        return _data(self.request_spec)


def place(own: str, cell: str, host: str) -> str:
    """Return a host's name for people: HOST in the server's ``own`` cell, CELL/HOST elsewhere.

    Two cells may have hosts of the same name.
    """
    return host if cell == own else f"{cell}/{host}"


def amounts(flavor: Mapping[str, Any], *, boot_from_volume: bool) -> dict[str, int]:
    """Return the amount of each resource class that the flavor asks for: MEMORY_MB in MiB, DISK_GB in GiB.

    The flavor's extra specs ``resources:CLASS`` replace what the flavor's own fields say, and 0 takes a class away.
    """
    specs = flavor.get("extra_specs") or {}
    processors = "PCPU" if specs.get("hw:cpu_policy") == "dedicated" else "VCPU"
    root = 0 if boot_from_volume else flavor["root_gb"]
    swap = -(-flavor["swap"] // MIB_PER_GIB)
    found = {
        processors: flavor["vcpus"],
        "MEMORY_MB": flavor["memory_mb"],
        "DISK_GB": root + flavor["ephemeral_gb"] + swap,
    }
    found |= _named(_RESOURCES, specs, "")
    return {name: int(amount) for name, amount in found.items() if int(amount)}


def query(
    request: MoveRequest,
    *,
    target_provider: str | None = None,
    zone_aggregates: Iterable[str] = (),
    isolated_aggregates: Iterable[str] = (),
    unknown_traits: Iterable[str] = (),
) -> list[tuple[str, str]]:
    """Return the parameters of ``GET /allocation_candidates`` as pairs in a fixed order.

    ``target_provider`` is the uuid of the compute node of a host that was named. ``zone_aggregates`` are the uuids of
    the aggregates that make the wanted availability zone. ``isolated_aggregates`` are the uuids of the aggregates that
    are kept for other servers.
    ``unknown_traits`` are forbidden traits that Placement does not know. The query leaves them out, since Placement
    refuses a query that names them, and no host can have them.
    """
    specs = request.extra_specs
    pairs = [("resources", listed(amounts(request.flavor, boot_from_volume=request.boot_from_volume)))]
    if traits := _wanted(request.required_traits, request.forbidden_traits.difference(unknown_traits)):
        pairs.append(("required", traits))
    if zone := sorted(zone_aggregates):
        pairs.append(("member_of", f"in:{','.join(zone)}"))
    if isolated := sorted(isolated_aggregates):
        pairs.append(("member_of", f"!in:{','.join(isolated)}"))
    if target_provider is not None:
        pairs.append(("in_tree", target_provider))
    groups = _group_names(specs)
    for name in groups:
        pairs.append((f"resources{name}", listed(_named(_RESOURCES, specs, name))))
        if traits := _wanted(_traits(specs, name, "required"), _traits(specs, name, "forbidden")):
            pairs.append((f"required{name}", traits))
    pairs += of_ports(request.ports)
    if len(groups) + sum(len(port.groups) for port in request.ports) > 1:
        pairs.append(("group_policy", specs.get("group_policy", "none")))
    pairs.append(("root_required", f"!{DISABLED_TRAIT}"))
    # The limit cuts off candidates.  A server group may forbid all that are left, so its query has no limit.  Nor has
    # the query for a named host, which asks for that host alone.
    if request.group is None and target_provider is None:
        pairs.append(("limit", str(MAX_RESULTS)))
    return pairs


def of_ports(ports: Iterable[PortResources]) -> Iterator[tuple[str, str]]:
    """Return the pairs of a query for what ports ask for.

    Each group of resources in the query is named by the id of the port's group, as Nova names it.
    """
    for port in ports:
        for group in port.groups:
            yield f"resources{group.id}", listed(group.resources)
            if group.required:
                yield f"required{group.id}", _wanted(group.required, ())
        if port.same_subtree:
            yield "same_subtree", ",".join(port.same_subtree)


def _data(packed: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return the fields of a versioned object of Nova; an object that is not set has none."""
    return packed.get("nova_object.data", {}) if packed else {}


def _named(pattern: re.Pattern[str], specs: Mapping[str, Any], group: str) -> dict[str, Any]:
    matches = ((pattern.fullmatch(key), value) for key, value in specs.items())
    return {match[2]: value for match, value in matches if match and match[1] == group}


def _group_names(specs: Mapping[str, Any]) -> Sequence[str]:
    return sorted({match[1] for key in specs if (match := _RESOURCES.fullmatch(key)) and match[1]})


def _traits(specs: Mapping[str, Any], group: str, value: str) -> set[str]:
    return {name for name, found in _named(_TRAIT, specs, group).items() if found == value}


def _wanted(required: Iterable[str], forbidden: Iterable[str]) -> str:
    return ",".join(sorted([*required, *(f"!{trait}" for trait in forbidden)]))


def listed(resources: Mapping[str, Any]) -> str:
    """Return the amounts as Placement's queries write them: CLASS:AMOUNT, separated by commas."""
    return ",".join(f"{name}:{amount}" for name, amount in sorted(resources.items()))
