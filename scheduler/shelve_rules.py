"""Checks a server and its image by the rules for a shelve and an unshelve.

Each function is one rule. Its docstring says what the rule requires. It returns None when the rule holds, else one
sentence that names the thing, the rule and the mend.
"""

from __future__ import annotations

from droveway.clients.image import ACTIVE
from droveway.persistence.nova.vm_states import MOVABLE, VmState
from droveway.scheduler.facts import Facts

_WITH_MEMORY = {VmState.PAUSED: "unpause", VmState.SUSPENDED: "resume"}
"""The vm_states in which the host holds the guest's memory, each with Nova's command that ends it."""


def can_be_shelved(facts: Facts) -> str | None:
    """Require that a server to be shelved is active or stopped; no image holds the memory of a paused server."""
    server = facts.server
    state = server.vm_state
    if state in MOVABLE:
        return None
    if state == VmState.SHELVED_OFFLOADED:
        return f"server {server.name} is SHELVED_OFFLOADED already: droveway server unshelve {server.name} starts it"
    if state == VmState.SHELVED:
        return (
            f"server {server.name} was shelved by Nova and is still on host {server.host}: openstack server shelve "
            f"--offload {server.name} takes it off that host"
        )
    if state in _WITH_MEMORY:
        return (
            f"server {server.name} is {server.status}, and a shelve would lose its memory, which no image holds: "
            f"openstack server {_WITH_MEMORY[state]} {server.name}, then shelve it"
        )
    return (
        f"server {server.name} is {server.status} (state {state}), and only one that is ACTIVE or SHUTOFF can be "
        "shelved: bring it into one of these states, then try again"
    )


def gives_up_its_ephemeral_disk(facts: Facts) -> str | None:
    """Require that the request accepts the loss of what the server's ephemeral disk holds, if it has one."""
    size = facts.current.ephemeral_gb
    if not size or facts.discards_ephemeral:
        return None
    return (
        f"server {facts.server.name} has an ephemeral disk of {size} GB (flavor {facts.current.name}), which no image "
        "holds and which comes back empty: save what is on it, then give --discard-ephemeral"
    )


def has_no_config_drive(facts: Facts) -> str | None:
    """Require that the server has no config drive."""
    if not facts.features.config_drive:
        return None
    return (
        f"server {facts.server.name} has a config drive, which no image holds: it cannot be shelved or unshelved here, "
        "so leave it as it is, or build it anew without one"
    )


def image_can_be_kept(facts: Facts) -> str | None:
    """Require that an image service is configured, which holds the root disk, unless that disk is a volume."""
    if facts.server.boots_from_volume or facts.has_image_service:
        return None
    return (
        f"the root disk of server {facts.server.name} is an image while it is shelved, and no image service is "
        "configured: fill in [glance] on the machines of every conductor and worker"
    )


def is_offloaded(facts: Facts) -> str | None:
    """Require that a server to be unshelved is offloaded: it is on no host."""
    server = facts.server
    if server.vm_state == VmState.SHELVED_OFFLOADED and server.host is None:
        return None
    if server.vm_state == VmState.SHELVED_OFFLOADED:
        return (
            f"server {server.name} is SHELVED_OFFLOADED, and its row names host {server.host} all the same: "
            "droveway audit says what is wrong"
        )
    if server.vm_state == VmState.SHELVED:
        return (
            f"server {server.name} was shelved by Nova and is still on host {server.host}: openstack server unshelve "
            f"{server.name} starts it there"
        )
    return (
        f"server {server.name} is {server.status} (state {server.vm_state}), and only one that is SHELVED_OFFLOADED "
        f"can be unshelved: droveway server show {server.name}"
    )


def holds_nothing(facts: Facts) -> str | None:
    """Require that a server to be unshelved has no allocation in Placement."""
    if not facts.holds_anything:
        return None
    return (
        f"server {facts.server.name} is on no host and holds an allocation in Placement all the same, and a move needs "
        "the right allocation to begin with: droveway audit says what is wrong"
    )


def its_image_is_whole(facts: Facts) -> str | None:
    """Require that the image that holds a shelved server's root disk exists and is active."""
    server, image = facts.server, facts.features.shelved_image
    if server.boots_from_volume or (image is not None and facts.image_status == ACTIVE):
        return None
    if image is None:
        return (
            f"server {server.name} does not say which image holds its root disk (no shelved_image_id in its system "
            "metadata): droveway audit says what is wrong"
        )
    if facts.image_status is None:
        return (
            f"image {image}, which holds the root disk of server {server.name}, does not exist: bring it back from a "
            "backup under this id, since nothing else holds the server's data"
        )
    return (
        f"image {image}, which holds the root disk of server {server.name}, is {facts.image_status} and only one that "
        f"is active can be read: openstack image show {image}"
    )
