"""Checks the new flavor of a resize by the server, its image, and the quotas of its project and user.

Each function is one rule. Its docstring says what the rule requires. It returns None when the rule holds, else one
sentence that names the thing, the rule and the mend. A cold migration has no new flavor, so no rule here applies to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from oslo_utils import units

from droveway.persistence.nova.catalog import Flavor
from droveway.persistence.nova.quotas import CORES, RAM, UNLIMITED, QuotaUsage
from droveway.scheduler.facts import EndFacts, Facts
from droveway.scheduler.features import ACCELERATORS, unhandled

_UNITS: Final = {CORES: "vCPUs", RAM: "MB of memory"}


def _as_bool(text: str) -> object:
    # The import of strutils compiles hundreds of patterns, and few flavors have a value that is compared.
    from oslo_utils import strutils

    return strutils.bool_from_string(text, default=None)


_SAID_BY_BOTH: Final[Mapping[str, Callable[[str], object]]] = {
    "virtio_packed_ring": _as_bool,
    "vif_multiqueue_enabled": _as_bool,
    "locked_memory": _as_bool,
    "mem_encryption": _as_bool,
    "ephemeral_encryption": _as_bool,
    "ephemeral_encryption_format": str,
}
"""What flavor and image may both say, and Nova refuses with FlavorImageConflict when they differ.

Keys for devices of a host are left out: `binds_no_devices` refuses such a flavor whatever the image says.
"""


def may_be_used(facts: Facts) -> str | None:
    """Require that the new flavor is public, or the server's project was given access to it."""
    if facts.may_use:
        return None
    return (
        f"flavor {_new(facts).name} is private and project {facts.server.project} of server {facts.server.name} has no "
        "access to it: give the project access, or choose another flavor"
    )


def asks_for_no_accelerator(facts: Facts) -> str | None:
    """Require that the new flavor asks for no accelerator."""
    profile = _new(facts).extra_specs.get(ACCELERATORS)
    if profile is None:
        return None
    return (
        f"flavor {_new(facts).name} gives the accelerators of device profile {profile}, and a resize cannot "
        "give them: choose another flavor, or make a new server of it"
    )


def keeps_a_root_disk(facts: Facts) -> str | None:
    """Require that the new flavor has a root disk, unless the server has none either or boots from a volume."""
    if _new(facts).root_gb or not facts.current.root_gb or facts.server.boots_from_volume:
        return None
    return (
        f"flavor {_new(facts).name} has a root disk of 0 GB, and server {facts.server.name} has one of "
        f"{facts.current.root_gb} GB, which a resize cannot take away: choose a flavor with root_gb >= "
        f"{facts.current.root_gb}"
    )


def is_enabled(facts: Facts) -> str | None:
    """Require that the new flavor is not disabled."""
    if not _new(facts).disabled or _new(facts).id == facts.current.id:
        return None
    return f"flavor {_new(facts).name} is disabled: choose another one, droveway flavor list shows them"


def is_another_one(facts: Facts) -> str | None:
    """Require that the new flavor is not the server's own."""
    if _new(facts).id != facts.current.id:
        return None
    return (
        f"server {facts.server.name} has flavor {_new(facts).name} already, and a resize must change it: choose another"
    )


def shrinks_no_disk(facts: Facts) -> str | None:
    """Require that no disk becomes smaller; where the server boots from a volume, only the ephemeral disk counts."""
    old, new, server = facts.current, _new(facts), facts.server
    disks = [("ephemeral disk", "ephemeral_gb", old.ephemeral_gb, new.ephemeral_gb)]
    if not server.boots_from_volume:
        disks.insert(0, ("disk", "root_gb", old.root_gb, new.root_gb))
    for disk, column, before, after in disks:
        if after < before:
            return (
                f"{server.name} would shrink its {disk} from {before} GB ({old.name}) to {after} GB ({new.name}); a "
                f"disk can only grow. Choose a flavor with {column} >= {before}:  droveway flavor list"
            )
    return None


def keeps_the_quotas(facts: Facts) -> str | None:
    """Require that the larger size fits the quotas of cores and ram of the server's project and user."""
    return over_quota(facts.server.name, facts.current, _new(facts), facts.quota_usages, "choose a smaller flavor")


def has_the_images_memory(facts: Facts) -> str | None:
    """Require that the new flavor has the memory that the server's image needs."""
    needed = facts.features.min_ram_mb
    if _new(facts).memory_mb >= needed:
        return None
    return (
        f"the image of server {facts.server.name} needs {needed} MB of memory and flavor {_new(facts).name} has "
        f"{_new(facts).memory_mb} MB: choose a flavor with memory_mb >= {needed}"
    )


def has_the_images_disk(facts: Facts) -> str | None:
    """Require that the new root disk, if there is one, has room for the server's image; a volume is not looked at."""
    root = _new(facts).root_gb
    needed = max(facts.features.min_disk_gb, -(-facts.features.image_bytes // units.Gi))
    if facts.server.boots_from_volume or not root or root >= needed:
        return None
    return (
        f"the image of server {facts.server.name} needs a root disk of {needed} GB and flavor {_new(facts).name} has "
        f"one of {root} GB: choose a flavor with root_gb >= {needed}"
    )


def agrees_with_the_image(facts: Facts) -> str | None:
    """Require that the new flavor and the server's image do not contradict each other about the guest's machine."""
    flavor, image = _new(facts).extra_specs, facts.features.image_properties
    for name, reads in _SAID_BY_BOTH.items():
        spec, prop = f"hw:{name}", f"hw_{name}"
        if spec in flavor and prop in image and reads(flavor[spec]) != reads(image[prop]):
            return (
                f"flavor {_new(facts).name} says {spec}={flavor[spec]} and the image of server {facts.server.name} "
                f"{prop}={image[prop]}, which contradict each other: choose a flavor that agrees with the image"
            )
    return None


def binds_no_devices(facts: Facts) -> str | None:
    """Require that the new flavor gives no host device: pinned CPUs, NUMA cells, large pages, PCI, vGPU, vTPM, pmem."""
    found = unhandled(f"flavor {_new(facts).name}", _new(facts).extra_specs)
    if found is None:
        return None
    return (
        f"server {facts.server.name} would get {found}, and single devices of a host cannot be given by a resize yet: "
        "choose another flavor"
    )


def revert_keeps_the_quotas(facts: EndFacts) -> str | None:
    """Require that a revert to a larger flavor fits the quotas of the server's project and user."""
    return over_quota(facts.server.name, facts.current, facts.old, facts.quota_usages, "confirm the move instead")


def over_quota(server: str, old: Flavor, new: Flavor, quota_usages: Iterable[QuotaUsage], instead: str) -> str | None:
    """Return the sentence on the quota that the new flavor would break; as in Nova, only what grows is looked at.

    ``instead`` says what the operator can do instead of changing to that flavor. Memory is in MiB.
    """
    growth = {CORES: new.vcpus - old.vcpus, RAM: new.memory_mb - old.memory_mb}
    for usage in quota_usages:
        more = growth[usage.resource]
        if more > 0 and usage.limit != UNLIMITED and usage.used + more > usage.limit:
            return (
                f"server {server} would need {more} more {_UNITS[usage.resource]}, and {usage.owner} uses "
                f"{usage.used} of the {usage.limit} that its quota of {usage.resource} allows: {instead}, free "
                "some, or raise the quota"
            )
    return None


def _new(facts: Facts) -> Flavor:
    if facts.new is None:
        raise ValueError("a cold migration has no new flavor")
    return facts.new
