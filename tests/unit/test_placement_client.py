"""The Placement client against the real Placement, in process."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from keystoneauth1 import exceptions

from droveway.clients.embedded import placement as embedded
from droveway.clients.placement import MIGRATION, Placement
from droveway.errors import DestinationFault, Refused, StepError

SOURCE = "11111111-1111-4111-8111-111111111111"
DESTINATION = "22222222-2222-4222-8222-222222222222"
SERVER = "33333333-3333-4333-8333-333333333333"
MOVE = "44444444-4444-4444-8444-444444444444"
OWNER = {"project_id": "p", "user_id": "u"}
SMALL = {"VCPU": 2, "MEMORY_MB": 512}
LARGE = {"VCPU": 4, "MEMORY_MB": 1024}
BEFORE = {SOURCE: SMALL}
AFTER = {DESTINATION: LARGE}
AT_DESTINATION = {"allocations": {DESTINATION: {"resources": LARGE}}, "mappings": {"": [DESTINATION]}}


class Requests:
    """What was asked of Placement, and what goes wrong with it."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    def __call__(self, method: str, path: str) -> None:
        self.seen.append((method, path))

    def count(self, method: str, path: str) -> int:
        return self.seen.count((method, path))


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Placement with two hosts and one server; making it takes longer than a test."""
    path = tmp_path_factory.mktemp("prepared") / "placement.sqlite"
    client = Placement(embedded.embedded_placement(path))
    inventories = {"VCPU": {"total": 8}, "MEMORY_MB": {"total": 4096}}
    client.ensure_provider(SOURCE, "host1", inventories)
    client.ensure_provider(DESTINATION, "host2", inventories, traits=["CUSTOM_X"], aggregates=[MOVE])
    client.ensure_allocation(SERVER, BEFORE, **OWNER)
    return path


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "placement.sqlite"


@pytest.fixture
def asked() -> Requests:
    return Requests()


@pytest.fixture
def placement(prepared: Path, database: Path, asked: Requests) -> Placement:
    shutil.copyfile(prepared, database)
    return Placement(embedded.embedded_placement(database), on_request=asked)


def claim(client: Placement) -> None:
    client.claim_move(
        server=SERVER, migration=MOVE, source=client.allocations(SERVER), destination=AT_DESTINATION, **OWNER
    )


def held(client: Placement) -> tuple[Any, Any]:
    """What the server and the migration hold."""
    return client.allocations(SERVER).allocations, client.allocations(MOVE).allocations


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Callable[..., Any]]]:
    """Functions put here stand, each once, between the client and its POSTs of allocations."""
    tamper: list[Callable[..., Any]] = []
    send = embedded._Transport.send

    def through(self: Any, request: requests.PreparedRequest, *args: Any, **options: Any) -> requests.Response:
        if request.method == "POST" and str(request.url).endswith("/allocations") and tamper:
            return tamper.pop(0)(lambda: send(self, request, *args, **options))
        return send(self, request, *args, **options)

    monkeypatch.setattr(embedded._Transport, "send", through)
    yield tamper
    assert tamper == []


def test_a_candidate_is_a_provider_with_its_allocation_request_and_what_is_used(
    placement: Placement, asked: Requests
) -> None:
    found = placement.candidates([("resources", "VCPU:4,MEMORY_MB:1024"), ("required", "CUSTOM_X"), ("limit", "5")])
    assert [candidate.provider for candidate in found] == [DESTINATION]
    assert found[0].allocation_request == AT_DESTINATION
    assert found[0].summaries[DESTINATION]["resources"]["VCPU"] == {"capacity": 8, "used": 0}
    assert asked.seen == [("GET", "/allocation_candidates")]


def test_a_claim_is_one_post_that_holds_both(placement: Placement, asked: Requests) -> None:
    """R3-07: one POST, and the migration holds just what the server held."""
    claim(placement)
    assert asked.count("POST", "/allocations") == 1
    assert held(placement) == (AFTER, BEFORE)
    assert placement.allocations(MOVE).consumer_type == MIGRATION
    assert placement.provider_allocations(SOURCE) == {MOVE: SMALL}
    assert placement.provider_usages(DESTINATION) == LARGE


def test_a_claim_hands_over_every_class_of_every_provider(placement: Placement, asked: Requests) -> None:
    """R3-07: what the server held of a nested provider and of a custom class is the migration's, and nothing more."""
    nested, shared = (f"{number}" * 8 + "-1111-4111-8111-111111111111" for number in (6, 7))
    placement.ensure_provider(nested, "host1_pf0", {"SRIOV_NET_VF": {"total": 4}, "VCPU": {"total": 2}})
    below = {"name": "host1_pf0", "parent_provider_uuid": SOURCE}
    assert placement._rest.send("PUT", f"/resource_providers/{nested}", json=below).status_code == 200
    placement.ensure_provider(shared, "pool", {"DISK_GB": {"total": 100}})
    everything = {SOURCE: SMALL, nested: {"SRIOV_NET_VF": 2, "VCPU": 1}, shared: {"DISK_GB": 20}}
    placement.ensure_allocation(SERVER, everything, **OWNER)
    posted = asked.count("POST", "/allocations")
    claim(placement)
    assert asked.count("POST", "/allocations") == posted + 1
    assert held(placement) == (AFTER, everything)


def test_a_repeated_claim_changes_nothing(placement: Placement, asked: Requests) -> None:
    claim(placement)
    before = placement.allocations(SERVER), placement.allocations(MOVE)
    claim(placement)
    assert asked.count("POST", "/allocations") == 1
    assert (placement.allocations(SERVER), placement.allocations(MOVE)) == before


def test_a_full_destination_is_its_own_fault_and_changes_nothing(placement: Placement) -> None:
    placement.ensure_allocation("55555555-5555-4555-8555-555555555555", {DESTINATION: {"VCPU": 6}}, **OWNER)
    with pytest.raises(DestinationFault) as caught:
        claim(placement)
    assert caught.value.error_code == "no-capacity"
    assert held(placement) == (BEFORE, {})
    claim_elsewhere = {"allocations": {SOURCE: {"resources": LARGE}}}
    placement.claim_move(
        server=SERVER, migration=MOVE, source=placement.allocations(SERVER), destination=claim_elsewhere, **OWNER
    )
    assert held(placement) == ({SOURCE: LARGE}, BEFORE)


def test_a_server_without_an_allocation_is_sent_to_the_audit(placement: Placement) -> None:
    placement.release(SERVER)
    with pytest.raises(StepError, match="droveway audit") as caught:
        claim(placement)
    assert caught.value.error_code == "no-allocation"
    assert held(placement) == ({}, {})


def test_a_claim_over_another_attempts_leftover_is_refused(placement: Placement) -> None:
    placement.ensure_allocation(MOVE, {DESTINATION: SMALL}, consumer_type=MIGRATION, **OWNER)
    with pytest.raises(StepError) as caught:
        claim(placement)
    assert caught.value.error_code == "allocation-conflict"
    assert held(placement) == (BEFORE, {DESTINATION: SMALL})


def test_a_late_claim_is_refused_by_its_generation(placement: Placement) -> None:
    late = placement.allocations(SERVER)
    claim(placement)
    placement.return_move(server=SERVER, migration=MOVE)
    with pytest.raises(StepError) as caught:
        placement.claim_move(server=SERVER, migration=MOVE, source=late, destination=AT_DESTINATION, **OWNER)
    assert caught.value.error_code == "allocation-conflict"
    assert held(placement) == (BEFORE, {})


def test_giving_back_is_one_post_and_may_be_repeated(placement: Placement, asked: Requests) -> None:
    placement.return_move(server=SERVER, migration=MOVE, source_allocations=BEFORE)
    assert asked.count("POST", "/allocations") == 0
    claim(placement)
    asked.seen.clear()
    for _ in range(2):
        placement.return_move(server=SERVER, migration=MOVE, source_allocations=BEFORE)
    assert asked.count("POST", "/allocations") == 1
    assert held(placement) == (BEFORE, {})
    assert placement.provider_usages(DESTINATION) == {"VCPU": 0, "MEMORY_MB": 0}
    claim(placement)
    assert held(placement) == (AFTER, BEFORE)


def test_giving_back_what_nobody_kept_is_refused(placement: Placement) -> None:
    placement.ensure_allocation(SERVER, AFTER, **OWNER)
    with pytest.raises(StepError) as caught:
        placement.return_move(server=SERVER, migration=MOVE, source_allocations=BEFORE)
    assert caught.value.error_code == "allocation-conflict"
    placement.release(SERVER)
    with pytest.raises(StepError) as caught:
        placement.return_move(server=SERVER, migration=MOVE, source_allocations=BEFORE)
    assert caught.value.error_code == "no-allocation"


def test_a_deleted_server_gives_up_both_in_one_post(placement: Placement, asked: Requests) -> None:
    claim(placement)
    asked.seen.clear()
    for _ in range(2):
        placement.return_move(server=SERVER, migration=MOVE, release=True)
    assert asked.count("POST", "/allocations") == 1
    assert held(placement) == ({}, {})


def test_a_release_may_be_repeated(placement: Placement) -> None:
    claim(placement)
    placement.release(MOVE)
    placement.release(MOVE)
    assert held(placement) == (AFTER, {})


@pytest.mark.parametrize("verb", ["claim", "return", "release"])
def test_a_lost_answer_is_looked_into(
    placement: Placement, wire: list[Callable[..., Any]], asked: Requests, verb: str
) -> None:
    def lose(send: Callable[[], Any]) -> Any:
        send()
        raise exceptions.ConnectFailure("the connection broke")

    if verb != "claim":
        claim(placement)
    asked.seen.clear()
    wire.append(lose)
    if verb == "claim":
        claim(placement)
    elif verb == "return":
        placement.return_move(server=SERVER, migration=MOVE)
    else:
        placement.release(MOVE)
    assert held(placement) == {"claim": (AFTER, BEFORE), "return": (BEFORE, {}), "release": (AFTER, {})}[verb]
    assert asked.count("POST", "/allocations") == 1


def test_a_request_that_never_arrived_is_sent_again(placement: Placement, wire: list[Callable[..., Any]]) -> None:
    def drop(_send: Callable[[], Any]) -> Any:
        raise exceptions.ConnectFailure("the connection broke")

    wire += [drop, drop]
    claim(placement)
    assert held(placement) == (AFTER, BEFORE)


def test_a_quicker_writer_at_a_provider_is_waited_out(placement: Placement, wire: list[Callable[..., Any]]) -> None:
    def conflict(_send: Callable[[], Any]) -> Any:
        response = requests.Response()
        response.status_code = 409
        detail = "Inventory and/or allocations changed while attempting to allocate"
        response._content = json.dumps(
            {"errors": [{"status": 409, "detail": detail, "code": "placement.concurrent_update"}]}
        ).encode()
        response.headers["Content-Type"] = "application/json"
        return response

    wire += [conflict, conflict]
    claim(placement)
    assert held(placement) == (AFTER, BEFORE)


def test_a_placement_that_stays_silent_ends_the_step(placement: Placement, wire: list[Callable[..., Any]]) -> None:
    def drop(_send: Callable[[], Any]) -> Any:
        raise exceptions.ConnectFailure("the connection broke")

    wire += [drop] * 5
    with pytest.raises(StepError) as caught:
        claim(placement)
    assert caught.value.error_code == "placement-unavailable"
    assert held(placement) == (BEFORE, {})


def in_child(call: Callable[[], None]) -> int:
    """The wait status of a forked child that runs the call."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            call()
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1]


def test_a_placement_killed_inside_a_claim_does_not_bar_the_next(placement: Placement) -> None:
    """R3-07: a kill in the middle never leaves the source without an owner."""

    def killed() -> None:
        from placement.objects import allocation

        allocation.replace_all = lambda *_args: os.kill(os.getpid(), signal.SIGKILL)
        claim(placement)

    assert os.WTERMSIG(in_child(killed)) == signal.SIGKILL
    assert held(placement) == (BEFORE, {})
    claim(placement)
    assert held(placement) == (AFTER, BEFORE)


def test_a_process_killed_while_it_wrote_the_file_does_not_bar_the_next(placement: Placement, database: Path) -> None:
    """What it left is a hot journal, which whoever reads next has to roll back."""

    def killed() -> None:
        opened = sqlite3.connect(database)
        opened.execute("PRAGMA cache_size = 1")
        opened.execute("CREATE TABLE half (content BLOB)")
        opened.execute("BEGIN")
        opened.execute("DELETE FROM allocations")
        opened.executemany("INSERT INTO half VALUES (randomblob(?))", [(4096,)] * 100)
        os.kill(os.getpid(), signal.SIGKILL)

    assert os.WTERMSIG(in_child(killed)) == signal.SIGKILL
    assert database.with_name(f"{database.name}-journal").stat().st_size > 0
    assert held(placement) == (BEFORE, {})


def test_a_forked_child_goes_on_with_what_its_parent_used(placement: Placement) -> None:
    assert in_child(lambda: claim(placement)) == 0
    assert held(placement) == (AFTER, BEFORE)


def test_a_fork_waits_for_the_request_under_way(placement: Placement) -> None:
    done = threading.Event()

    def ask() -> None:
        while not done.is_set():
            placement.provider_usages(SOURCE)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        statuses = [in_child(lambda: placement.provider_usages(SOURCE) and None) for _ in range(5)]
    finally:
        done.set()
        thread.join()
    assert statuses == [0] * 5


def _consume(database: Path, consumer: str) -> None:
    client = Placement(embedded.embedded_placement(database))
    for _ in range(5):
        client.ensure_allocation(consumer, {SOURCE: {"VCPU": 1}}, **OWNER)
        client.release(consumer)
    client.ensure_allocation(consumer, {SOURCE: {"VCPU": 1}}, **OWNER)


def test_processes_and_threads_share_one_database(placement: Placement, database: Path) -> None:
    consumers = [f"66666666-6666-4666-8666-66666666666{number}" for number in range(4)]
    fork = multiprocessing.get_context("fork")
    workers: list[Any] = [fork.Process(target=_consume, args=(database, consumer)) for consumer in consumers[:2]]
    workers += [threading.Thread(target=_consume, args=(database, consumer)) for consumer in consumers[2:]]
    for worker in workers:
        worker.start()
    deadline = time.monotonic() + 60
    for worker in workers:
        worker.join(deadline - time.monotonic())
        assert not worker.is_alive()
    assert placement.provider_allocations(SOURCE) == {SERVER: SMALL} | {consumer: {"VCPU": 1} for consumer in consumers}


def test_two_databases_in_one_process_stay_apart(placement: Placement, tmp_path: Path) -> None:
    other = Placement(embedded.embedded_placement(tmp_path / "other.sqlite"))
    other.ensure_provider(SOURCE, "elsewhere", {"VCPU": {"total": 1}})
    assert [provider.name for provider in other.providers()] == ["elsewhere"]
    assert [provider.name for provider in placement.providers()] == ["host1", "host2"]


def test_a_half_made_database_is_made_anew(database: Path) -> None:
    database.with_name("placement.sqlite.new").write_bytes(b"half")
    assert Placement(embedded.embedded_placement(database)).providers() == []
    assert sorted(path.name for path in database.parent.iterdir()) == ["placement.sqlite", "placement.sqlite.lock"]


def test_a_directory_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="cannot be used"):
        Placement(embedded.embedded_placement(tmp_path / "none" / "placement.sqlite")).providers()


def test_a_provider_takes_what_it_is_given_last(placement: Placement) -> None:
    placement.ensure_provider(DESTINATION, "host2", {"VCPU": {"total": 3, "allocation_ratio": 2.0}})
    assert placement.provider_inventories(DESTINATION)["VCPU"]["total"] == 3
    assert set(placement.provider_inventories(DESTINATION)) == {"VCPU"}
    assert placement.provider_traits(DESTINATION) == set()
    assert placement.candidates([("resources", "VCPU:1"), ("member_of", MOVE)]) == []


def test_one_trait_comes_and_goes(placement: Placement) -> None:
    placement.ensure_trait(DESTINATION, "COMPUTE_STATUS_DISABLED", present=True)
    assert placement.provider_traits(DESTINATION) == {"CUSTOM_X", "COMPUTE_STATUS_DISABLED"}
    placement.ensure_trait(DESTINATION, "COMPUTE_STATUS_DISABLED", present=False)
    assert placement.provider_traits(DESTINATION) == {"CUSTOM_X"}


def test_a_malformed_request_names_placements_answer(placement: Placement) -> None:
    with pytest.raises(StepError, match="400") as caught:
        placement.candidates([("resources", "nonsense")])
    assert caught.value.error_code == "placement-failed"


def test_both_consumers_of_a_move_are_rewritten_at_once(placement: Placement, asked: Requests) -> None:
    """As a copy that was put back lacks them; who changed one since it was read is not overwritten."""
    found = {consumer: placement.allocations(consumer) for consumer in (SERVER, MOVE)}
    source = {"allocations": {SOURCE: {"resources": SMALL}}}
    both = {SERVER: (found[SERVER], AT_DESTINATION, "INSTANCE"), MOVE: (found[MOVE], source, MIGRATION)}
    placement.rewrite(both, **OWNER)
    assert (placement.allocations(SERVER).allocations, placement.allocations(MOVE).allocations) == (AFTER, BEFORE)
    assert placement.allocations(MOVE).consumer_type == MIGRATION
    assert asked.count("POST", "/allocations") == 1
    back = {
        SERVER: (found[SERVER], source, "INSTANCE"),
        MOVE: (placement.allocations(MOVE), {"allocations": {}}, MIGRATION),
    }
    with pytest.raises(StepError, match="another writer changed the allocations"):
        placement.rewrite(back, **OWNER)
    assert placement.allocations(SERVER).allocations == AFTER
    placement.rewrite(back | {SERVER: (placement.allocations(SERVER), source, "INSTANCE")}, **OWNER)
    assert (placement.allocations(SERVER).allocations, placement.allocations(MOVE).allocations) == (BEFORE, {})
