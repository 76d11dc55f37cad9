"""Which of the moves that wait are admitted, whatever the limits are."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from droveway.engines.keeper.admission import EVERYWHERE, Admission, Kind, Limits, Place, places

Places = frozenset[Place]

HOSTS = st.sets(st.sampled_from(["h1", "h2", "h3"]), min_size=1, max_size=2)
RACKS = {"h1": frozenset({"r1"}), "h2": frozenset({"r1", "r2"})}


def move(source: str, destination: str | None = None, target: str | None = None) -> Any:
    return SimpleNamespace(
        source_host=source, dest_host=destination, target_host=target, source_cell="c1", dest_cell=None
    )


def wanted(*hosts: str) -> Places:
    return places(move(*hosts), RACKS)


LIMITS = st.builds(
    Limits,
    running=st.integers(1, 4),
    host=st.integers(0, 2),
    cell=st.integers(0, 3),
    rack=st.integers(0, 2),
)
MOVES = st.lists(HOSTS.map(lambda hosts: wanted(*sorted(hosts))), max_size=12)


def admitted(limits: Limits, running: list[Places], queue: list[Places]) -> list[int]:
    """The indexes of those of the queue that are let in."""
    admission = Admission(limits, running)
    return [number for number, each in enumerate(queue) if admission.admit(each) is None]


def taken(moves: list[Places]) -> Counter[Place]:
    return Counter(place for each in moves for place in each)


def fits(limits: Limits, running: list[Places]) -> bool:
    return all(limits.of(place) == 0 or count <= limits.of(place) for place, count in taken(running).items())


def test_a_move_takes_room_at_its_source_and_where_it_goes() -> None:
    hosts = {Place(Kind.HOST, "h1"), Place(Kind.HOST, "h3")}
    at_home = {EVERYWHERE, Place(Kind.CELL, "c1"), Place(Kind.HOST, "h1"), Place(Kind.RACK, "r1")}
    assert places(move("h1"), RACKS) == at_home
    assert places(move("h1", target="h3"), RACKS) == at_home | hosts
    assert places(move("h1", destination="h3", target="h2"), RACKS) == at_home | hosts
    assert places(move("h1", "h2"), RACKS) >= {Place(Kind.RACK, "r1"), Place(Kind.RACK, "r2")}


def test_the_place_that_is_full_is_named() -> None:
    admission = Admission(Limits(running=9, host=1), [wanted("h1")])
    assert admission.admit(wanted("h1")) == Place(Kind.HOST, "h1")
    assert admission.admit(wanted("h3")) is None
    assert admission.full() == {Place(Kind.HOST, "h1"), Place(Kind.HOST, "h3")}
    assert admission.room() == 7


@given(LIMITS, MOVES, MOVES)
def test_no_limit_is_ever_exceeded(limits: Limits, running: list[Places], queue: list[Places]) -> None:
    """What runs may be more than a limit that was lowered meanwhile: then nothing is added there."""
    before = taken(running)
    after = taken([*running, *(queue[number] for number in admitted(limits, running, queue))])
    for place, count in after.items():
        assert limits.of(place) == 0 or count <= max(limits.of(place), before[place])


@given(LIMITS, MOVES)
def test_the_oldest_goes_first_and_no_room_stays_empty_but_what_is_kept_for_it(
    limits: Limits, queue: list[Places]
) -> None:
    let_in = admitted(limits, [], queue)
    waiting = [number for number in range(len(queue)) if number not in let_in]
    for number in waiting:
        older = [queue[each] for each in let_in if each < number]
        kept = [queue[waiting[0]] - {EVERYWHERE}] if waiting[0] < number else []
        assert not fits(limits, [*older, *kept, queue[number]])
    if queue:
        assert let_in[:1] == [0]


@given(LIMITS, MOVES, st.data())
def test_the_oldest_runs_at_the_latest_when_all_that_ran_before_it_have_ended(
    limits: Limits, queue: list[Places], data: st.DataObject
) -> None:
    """However many younger ones come meanwhile, and in whatever order what runs ends."""
    running: list[Places] = []
    oldest = wanted("h1", "h3")
    rivals = [wanted("h1"), wanted("h3"), wanted("h2")]
    for each in [*queue, *rivals * 4]:
        if fits(limits, [*running, each]):
            running.append(each)
    ran_before = list(running)
    others: list[Places] = []
    waiting = [oldest, *queue, *rivals * 9]
    while True:
        let_in = admitted(limits, [*ran_before, *others], waiting)
        if 0 in let_in:
            return
        assert ran_before, "nothing of what ran before is left, and it waits still"
        others += [waiting[number] for number in let_in]
        waiting = [each for number, each in enumerate(waiting) if number not in let_in] + rivals
        ran_before.pop(data.draw(st.integers(0, len(ran_before) - 1)))
