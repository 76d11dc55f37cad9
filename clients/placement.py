"""Speaks to Placement for moves, for labs and for the audit.

Every method may be repeated. This module repeats a request after a lost answer or a conflict of a provider's
generation. If somebody else has changed a consumer, it raises `ConsumerChanged`, and the caller decides.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from keystoneauth1 import adapter
from keystoneauth1 import session as keystone

from droveway.clients.rest import CONFLICT, Rest, TryAgainError, detail_of
from droveway.errors import DestinationFault, StepError

MICROVERSION: Final = "1.38"
SERVER: Final = "INSTANCE"
MIGRATION: Final = "MIGRATION"
SAME_HOST_TRAIT: Final = "COMPUTE_SAME_HOST_COLD_MIGRATE"
_NO_TYPE: Final = "unknown"
"""The type that Placement shows for a consumer without one, and refuses in a request."""

_BAD_REQUEST: Final = 400
_UNKNOWN: Final = re.compile(r"No such (trait|resource class)")

OF_PORTS: Final = "NET_"
"""The beginning of the resource classes that only ports ask for."""

ProviderResources = dict[str, dict[str, int]]
"""Maps a provider's uuid to resource classes, and each of these to its amount (MEMORY_MB in MiB, DISK_GB in GiB)."""


@dataclass(frozen=True)
class Allocations:
    """The allocations of one consumer; ``generation`` is None when it has none."""

    allocations: ProviderResources
    generation: int | None = None
    project_id: str = ""
    user_id: str = ""
    consumer_type: str = SERVER


class ConsumerChanged(StepError):
    """Somebody else has changed a consumer since it was read; the code is ``allocation-conflict``."""


@dataclass(frozen=True)
class Candidate:
    """One way to meet a request; ``provider`` is the compute node's uuid, which is the root of its tree."""

    provider: str
    allocation_request: dict[str, Any]
    """Placement's answer (``allocations`` and ``mappings``) in plain JSON, to be handed to `Placement.claim_move`."""
    summaries: dict[str, Any] = field(default_factory=dict)
    """Maps each provider of that tree to its ``resources`` (``capacity`` and ``used`` by class) and ``traits``."""


@dataclass(frozen=True)
class Provider:
    """A resource provider."""

    uuid: str
    name: str
    parent: str | None


class Placement:
    """The client of Placement over a keystoneauth session; ``where`` has options of its adapter, such as region_name.

    Every method raises `droveway.errors.StepError`: ``placement-unavailable`` when Placement gives no answer,
    ``placement-overdue`` once the step's deadline has passed, ``no-capacity`` when a provider is full,
    ``no-allocation`` when a server holds nothing, ``allocation-conflict`` when a consumer's allocations are not what
    they should be, and ``placement-failed`` for any other refusal.
    ``on_request`` is called with method and path before each request.
    """

    def __init__(
        self, session: keystone.Session, *, on_request: Callable[[str, str], None] | None = None, **where: Any
    ) -> None:
        root = adapter.Adapter(session, service_type="placement", default_microversion=MICROVERSION, **where)
        self._rest = Rest(root, "Placement", on_request)

    # Methods for moves.

    def candidates(self, query: Iterable[tuple[str, str]]) -> list[Candidate]:
        """Return the candidates for ``query`` (parameters of ``GET /allocation_candidates``), in Placement's order.

        There are none for a query that names a trait or a resource class which Placement does not know.
        """
        answer = self._known("/allocation_candidates", list(query))
        if answer is None:
            return []
        summaries = answer["provider_summaries"]
        return [_candidate(request, summaries) for request in answer["allocation_requests"]]

    def known_traits(self, traits: Collection[str]) -> set[str]:
        """Return those of the traits that Placement knows."""
        if not traits:
            return set()
        return set(self._rest.get("/traits", params={"name": f"in:{','.join(sorted(traits))}"})["traits"])

    def roots(self, *demands: tuple[str, str]) -> frozenset[str]:
        """Return the roots of the providers that meet the demands (parameters of ``GET /resource_providers``)."""
        answer = self._known("/resource_providers", list(demands))
        return frozenset(row["root_provider_uuid"] for row in (answer or {}).get("resource_providers", ()))

    def allocations(self, consumer: str) -> Allocations:
        """Return the consumer's allocations; an unknown consumer has none."""
        answer = self._rest.get(f"/allocations/{consumer}")
        return Allocations(
            allocations=resources_of(answer),
            generation=answer.get("consumer_generation"),
            project_id=answer.get("project_id", ""),
            user_id=answer.get("user_id", ""),
            consumer_type=_type_of(answer),
        )

    def claim_move(
        self,
        *,
        server: str,
        migration: str,
        source: Allocations,
        destination: Mapping[str, Any],
        project_id: str,
        user_id: str,
    ) -> None:
        """Give the server's allocations to the migration, and the destination's to the server, in one POST.

        ``source`` is what `allocations` returned for the server. The caller first reads ``source`` and then checks its
        claim on the move. If somebody else has written the server's allocations since that reading, the generation in
        ``source`` is old and `ConsumerChanged` is raised.
        After a crash ``source`` may already have the destination's allocations, and then nothing is done. Raises
        `droveway.errors.DestinationFault` ``no-capacity`` when the destination is full, and nothing has changed then.
        """
        wanted = resources_of(destination)
        held = self.allocations(migration)
        if held.allocations:
            if is_alike(source.allocations, wanted):
                return
            raise StepError(
                f"the migration {migration} already holds an allocation and the server {server} does not hold the"
                " destination's: run droveway audit",
                code="allocation-conflict",
            )
        if not source.allocations:
            raise _nothing_held(server)
        owner = {"project_id": project_id, "user_id": user_id}
        body = {
            server: {
                **owner,
                **{key: destination[key] for key in ("allocations", "mappings") if destination.get(key)},
                "consumer_type": SERVER,
                "consumer_generation": source.generation,
            },
            migration: _entry(source.allocations, None, **owner, consumer_type=MIGRATION),
        }

        def stands() -> bool:
            return self.allocations(migration).allocations == source.allocations and is_alike(
                self.allocations(server).allocations, wanted
            )

        self._write(body, stands, full=DestinationFault)

    def return_move(
        self,
        *,
        server: str,
        migration: str,
        source_allocations: ProviderResources | None = None,
        release: bool = False,
        found: Allocations | None = None,
    ) -> None:
        """Give the migration's allocations back to the server in one POST; ``release`` removes those of both instead.

        Without ``release`` nothing is done when the migration has no allocations: the claim never ran, or this method
        has run before. In that case the server has to have ``source_allocations``, if they are given. ``found`` is what
        `allocations` returned for the server before the caller checked its claim on the move. A change that somebody
        else has made since then is not overwritten.
        """
        held, holds = self.allocations(migration), found or self.allocations(server)
        if release:
            self._empty({migration: held, server: holds})
        elif held.allocations:
            self._give_back(server, holds, migration, held)
        elif not holds.allocations:
            raise _nothing_held(server)
        elif source_allocations is not None and holds.allocations != source_allocations:
            raise StepError(
                f"the server {server} holds another allocation than before its move and the migration {migration}"
                " holds none to give back: run droveway audit",
                code="allocation-conflict",
            )

    def rewrite(
        self,
        consumers: Mapping[str, tuple[Allocations, Mapping[str, Any], str]],
        *,
        project_id: str,
        user_id: str,
        full: type[StepError] = StepError,
    ) -> None:
        """Set the allocations of several consumers in one POST.

        ``consumers`` maps each consumer to what `allocations` returned for it, its new allocation request, and its
        type. A request without allocations empties the consumer. What somebody else has changed since `allocations`
        read it is not overwritten. Raises ``full`` with the code ``no-capacity`` when a provider has not enough.
        """
        body = {
            consumer: {
                **_entry({}, found.generation, project_id, user_id, kind),
                **{key: wanted[key] for key in ("allocations", "mappings") if wanted.get(key)},
            }
            for consumer, (found, wanted, kind) in consumers.items()
        }

        def stands() -> bool:
            return all(
                self.allocations(consumer).allocations == resources_of(wanted)
                for consumer, (_, wanted, _) in consumers.items()
            )

        self._write(body, stands, full)

    def release(self, consumer: str) -> None:
        """Delete the consumer's allocations; nothing is done when it has none."""
        self._empty({consumer: self.allocations(consumer)})

    def has_provider(self, uuid: str) -> bool:
        """Say whether the provider exists."""
        return bool(self._rest.get("/resource_providers", params={"uuid": uuid})["resource_providers"])

    def root_of(self, uuid: str) -> str:
        """Return the root of the provider's tree."""
        return str(self._rest.get(f"/resource_providers/{uuid}")["root_provider_uuid"])

    def provider_name(self, uuid: str) -> str:
        """Return the name of a provider."""
        return str(self._rest.get(f"/resource_providers/{uuid}")["name"])

    # Methods for labs and the audit.

    def providers(self) -> list[Provider]:
        """Return every provider, sorted by name."""
        rows = self._rest.get("/resource_providers")["resource_providers"]
        found = [Provider(row["uuid"], row["name"], row["parent_provider_uuid"]) for row in rows]
        return sorted(found, key=lambda provider: provider.name)

    def provider_usages(self, uuid: str) -> dict[str, int]:
        """Return for each resource class the amount that all consumers of the provider have together."""
        return dict(self._rest.get(f"/resource_providers/{uuid}/usages")["usages"])

    def provider_inventories(self, uuid: str) -> dict[str, dict[str, Any]]:
        """Return the inventory of each resource class (``total``, ``reserved``, ``allocation_ratio`` ...)."""
        return dict(self._rest.get(f"/resource_providers/{uuid}/inventories")["inventories"])

    def room(self, uuid: str) -> dict[str, int]:
        """Return the free amount of each resource class, by its allocation ratio and its reserved amount."""
        used = self.provider_usages(uuid)
        return {
            name: int((each["total"] - each["reserved"]) * each["allocation_ratio"]) - used.get(name, 0)
            for name, each in self.provider_inventories(uuid).items()
        }

    def provider_allocations(self, uuid: str) -> ProviderResources:
        """Return for each consumer what it has of this provider."""
        return resources_of(self._rest.get(f"/resource_providers/{uuid}/allocations"))

    def provider_traits(self, uuid: str) -> set[str]:
        """Return the traits of the provider."""
        return set(self._rest.get(f"/resource_providers/{uuid}/traits")["traits"])

    def ensure_provider(
        self,
        uuid: str,
        name: str,
        inventories: Mapping[str, Mapping[str, Any]],
        traits: Iterable[str] = (),
        aggregates: Iterable[str] = (),
        *,
        parent: str | None = None,
    ) -> None:
        """Make the provider, below its parent, and give it exactly these inventories, traits and aggregates (uuids)."""
        body = {"uuid": uuid, "name": name, **({} if parent is None else {"parent_provider_uuid": parent})}
        made = self._rest.repeat(lambda: self._rest.send("POST", "/resource_providers", json=body))
        if made.status_code == CONFLICT:
            self._rest.get(f"/resource_providers/{uuid}")
        else:
            self._rest.done("POST", "/resource_providers", made)
        self._put_of_provider(uuid, "inventories", {name: dict(value) for name, value in inventories.items()})
        self._put_of_provider(uuid, "aggregates", sorted(aggregates))
        self._put_traits(uuid, set(traits))

    def ensure_trait(self, uuid: str, trait: str, *, present: bool) -> None:
        """Set or take away one trait of the provider, as Nova does with COMPUTE_STATUS_DISABLED."""
        traits = self.provider_traits(uuid)
        self._put_traits(uuid, traits | {trait} if present else traits - {trait})

    def ensure_allocation(
        self,
        consumer: str,
        allocations: ProviderResources,
        *,
        project_id: str,
        user_id: str,
        consumer_type: str = SERVER,
    ) -> None:
        """Set the consumer's allocations; raises `droveway.errors.StepError` ``no-capacity`` when they do not fit."""
        holds = self.allocations(consumer)
        if holds.allocations != allocations:
            entry = _entry(allocations, holds.generation, project_id, user_id, consumer_type)
            self._write({consumer: entry}, lambda: self.allocations(consumer).allocations == allocations)

    # How requests are sent.

    def _known(self, path: str, query: list[tuple[str, str]]) -> Any:
        """Return the answer to a query; None when it names a trait or a resource class unknown to Placement."""
        response = self._rest.repeat(lambda: self._rest.send("GET", path, params=query))
        if response.status_code == _BAD_REQUEST and _UNKNOWN.search(detail_of(response)):
            return None
        return self._rest.done("GET", path, response).json()

    def _give_back(self, server: str, holds: Allocations, migration: str, held: Allocations) -> None:
        body = {
            migration: _emptied(held),
            server: _entry(held.allocations, holds.generation, held.project_id, held.user_id, SERVER),
        }

        def stands() -> bool:
            return not self.allocations(migration).allocations and is_alike(
                self.allocations(server).allocations, held.allocations
            )

        self._write(body, stands)

    def _empty(self, consumers: Mapping[str, Allocations]) -> None:
        holders = {consumer: _emptied(held) for consumer, held in consumers.items() if held.allocations}
        if holders:
            self._write(holders, lambda: not any(self.allocations(consumer).allocations for consumer in holders))

    def _put_traits(self, uuid: str, traits: set[str]) -> None:
        for trait in sorted(trait for trait in traits if trait.startswith("CUSTOM_")):
            path = f"/traits/{trait}"
            self._rest.done("PUT", path, self._rest.repeat(functools.partial(self._rest.send, "PUT", path)))
        self._put_of_provider(uuid, "traits", sorted(traits))

    def _put_of_provider(self, uuid: str, what: str, value: Any) -> None:
        def put() -> None:
            generation = self._rest.get(f"/resource_providers/{uuid}")["generation"]
            body = {what: value, "resource_provider_generation": generation}
            response = self._rest.send("PUT", path, json=body)
            if _is_concurrent(response):
                raise TryAgainError(detail_of(response))
            self._rest.done("PUT", path, response)

        path = f"/resource_providers/{uuid}/{what}"
        self._rest.repeat(put)

    def _write(
        self, body: dict[str, dict[str, Any]], stands: Callable[[], bool], full: type[StepError] = StepError
    ) -> None:
        """POST the allocations.

        A repeat sends the same generations. So Placement carries out only one of the requests, even if an earlier one
        arrives late. ``stands`` reads the allocations and says whether the POST has already taken effect.
        """

        def post() -> None:
            try:
                response = self._rest.send("POST", "/allocations", json=body)
            except TryAgainError:
                if stands():
                    return
                raise
            if response.status_code != CONFLICT:
                self._rest.done("POST", "/allocations", response)
            elif not _is_concurrent(response):
                raise full(f"Placement refused the allocation: {detail_of(response)}", code="no-capacity")
            elif not stands():
                self._judge_conflict(body, detail_of(response))

        self._rest.repeat(post)

    def _judge_conflict(self, body: dict[str, dict[str, Any]], detail: str) -> None:
        """Raise `TryAgainError` for a conflict that a repeat can solve, else `ConsumerChanged`."""
        if "consumer generation conflict" not in detail:
            raise TryAgainError(detail)
        # A Placement that is killed in the middle of a request leaves a new consumer without allocations. It shows no
        # generation for that consumer, and accepts a request with generation 0, not with null.
        for consumer, entry in body.items():
            if entry["consumer_generation"] is None and not self.allocations(consumer).allocations:
                entry["consumer_generation"] = 0
                raise TryAgainError(detail)
        raise ConsumerChanged(
            f"another writer changed the allocations of {' and '.join(body)} meanwhile ({detail}): run droveway audit",
            code="allocation-conflict",
        )


def resources_of(answer: Mapping[str, Any]) -> ProviderResources:
    """Return the amounts in an allocation request of Placement, or in an answer of it."""
    return {name: dict(held["resources"]) for name, held in answer["allocations"].items()}


def is_alike(found: ProviderResources, wanted: ProviderResources) -> bool:
    """Say whether two consumers' allocations are the same, without what ports ask for.

    Neutron changes those amounts itself when somebody changes the QoS policy of a bound port.
    """
    return without_ports(found) == without_ports(wanted)


def without_ports(held: ProviderResources) -> ProviderResources:
    """Return the allocations without the resource classes that ports ask for."""
    found = {
        provider: {name: amount for name, amount in amounts.items() if not name.startswith(OF_PORTS)}
        for provider, amounts in held.items()
    }
    return {provider: amounts for provider, amounts in found.items() if amounts}


def _candidate(request: dict[str, Any], summaries: Mapping[str, Any]) -> Candidate:
    roots = {uuid: str(summaries[uuid]["root_provider_uuid"]) for uuid in request["allocations"]}
    # A provider of shared disk is a root of its own. The compute node is the root that gives memory or processors.
    provider = next(
        (root for root in roots.values() if {"MEMORY_MB", "VCPU", "PCPU"} & set(summaries[root]["resources"])),
        next(iter(roots.values())),
    )
    tree = {uuid: summary for uuid, summary in summaries.items() if summary["root_provider_uuid"] == provider}
    return Candidate(provider, request, tree)


def _entry(
    allocations: ProviderResources, generation: int | None, project_id: str, user_id: str, consumer_type: str
) -> dict[str, Any]:
    return {
        "allocations": {uuid: {"resources": resources} for uuid, resources in allocations.items()},
        "project_id": project_id,
        "user_id": user_id,
        "consumer_type": consumer_type,
        "consumer_generation": generation,
    }


def _type_of(answer: Any) -> str:
    """Return the consumer's type, and a server's for a consumer without one: Nova sets none on its servers."""
    told = answer.get("consumer_type", _NO_TYPE)
    return SERVER if told == _NO_TYPE else str(told)


def _emptied(held: Allocations) -> dict[str, Any]:
    return _entry({}, held.generation, held.project_id, held.user_id, held.consumer_type)


def _nothing_held(server: str) -> StepError:
    return StepError(
        f"the server {server} holds no allocation in Placement, and a move needs one: run droveway audit",
        code="no-allocation",
    )


def _is_concurrent(response: Any) -> bool:
    """Say whether the conflict is of generations, and not a provider that is full."""
    if response.status_code != CONFLICT:
        return False
    return any(error.get("code") == "placement.concurrent_update" for error in response.json()["errors"])
