"""What a server holds is written by others too, while a move writes it: Neutron does, for a changed QoS policy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from droveway.clients.embedded import placement as embedded
from droveway.clients.placement import MIGRATION, ConsumerChanged, Placement
from droveway.flows.steps.allocations import ROUNDS, looking_anew

HERE, THERE, BRIDGE, OTHER_BRIDGE, SERVER, MOVE = (
    f"{number * 11111111}-1111-4111-8111-111111111111" for number in range(1, 7)
)
OWNER = {"project_id": "p", "user_id": "u"}
EGRESS = "NET_BW_EGR_KILOBIT_PER_SEC"
SMALL = {"VCPU": 2, "MEMORY_MB": 512}


def on(host: str, bridge: str, kbps: int) -> dict[str, dict[str, int]]:
    return {host: SMALL, bridge: {EGRESS: kbps}}


def claim(placement: Placement) -> None:
    """Claim the other host for the server, as it is found now."""
    placement.claim_move(
        server=SERVER,
        migration=MOVE,
        source=placement.allocations(SERVER),
        destination={"allocations": {each: {"resources": had} for each, had in on(THERE, OTHER_BRIDGE, 100).items()}},
        **OWNER,
    )


@pytest.fixture
def placement(tmp_path: Path) -> Placement:
    made = Placement(embedded.embedded_placement(tmp_path / "placement.sqlite"))
    for host, bridge in ((HERE, BRIDGE), (THERE, OTHER_BRIDGE)):
        made.ensure_provider(host, host, {"VCPU": {"total": 8}, "MEMORY_MB": {"total": 4096}})
        made.ensure_provider(bridge, bridge, {EGRESS: {"total": 4000}}, parent=host)
    made.ensure_allocation(SERVER, on(HERE, BRIDGE, 100), **OWNER)
    return made


def changing(placement: Placement, host: str, bridge: str, kbps: int) -> Callable[[], None]:
    return lambda: placement.ensure_allocation(SERVER, on(host, bridge, kbps), **OWNER)


def test_a_repeat_of_a_claim_knows_it_by_all_but_what_ports_ask_for(placement: Placement) -> None:
    claim(placement)
    changing(placement, THERE, OTHER_BRIDGE, 250)()
    claim(placement)
    assert placement.allocations(SERVER).allocations == on(THERE, OTHER_BRIDGE, 250)
    assert placement.allocations(MOVE).allocations == on(HERE, BRIDGE, 100)
    assert placement.allocations(MOVE).consumer_type == MIGRATION


def test_what_was_written_between_look_and_write_is_looked_at(placement: Placement) -> None:
    """The migration holds what the server held last, and nothing of before."""
    others = [changing(placement, HERE, BRIDGE, 250)]

    def write() -> None:
        found = placement.allocations(SERVER)
        while others:
            others.pop()()
        placement.claim_move(
            server=SERVER,
            migration=MOVE,
            source=found,
            destination={"allocations": {THERE: {"resources": SMALL}}},
            **OWNER,
        )

    looking_anew(write)
    assert placement.allocations(MOVE).allocations == on(HERE, BRIDGE, 250)
    assert placement.allocations(SERVER).allocations == {THERE: SMALL}


def test_a_write_that_was_overtaken_is_not_taken_for_done(placement: Placement) -> None:
    """Not even where the other writer changed no more than what ports ask for."""
    found = placement.allocations(SERVER)
    changing(placement, HERE, BRIDGE, 250)()
    wanted = {"allocations": {each: {"resources": had} for each, had in on(HERE, BRIDGE, 100).items()}}
    with pytest.raises(ConsumerChanged):
        placement.rewrite({SERVER: (found, wanted, "INSTANCE")}, **OWNER)
    assert placement.allocations(SERVER).allocations == on(HERE, BRIDGE, 250)


def test_who_is_overtaken_each_time_gives_up_and_changes_nothing(placement: Placement) -> None:
    rounds = []

    def write() -> None:
        found = placement.allocations(SERVER)
        rounds.append(found.generation)
        changing(placement, HERE, BRIDGE, 200 + len(rounds))()
        placement.return_move(server=SERVER, migration=MOVE, release=True, found=found)

    with pytest.raises(ConsumerChanged) as caught:
        looking_anew(write)
    assert caught.value.error_code == "allocation-conflict"
    assert len(set(rounds)) == ROUNDS
    assert placement.allocations(SERVER).allocations == on(HERE, BRIDGE, 200 + ROUNDS)
