"""What users write at a server with two copies is found three ways and carried: rule 13 of the cross-cell flows."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import sqlalchemy as sa
from hypothesis import strategies as st
from sqlalchemy import orm
from support.rows import user_writes
from support.rows.whole_server import OTHER, SERVER, Filler, everything

from droveway.persistence.database import Database, sqlite_url
from droveway.persistence.nova import copies, late_writes
from droveway.persistence.nova.cell import BlockDeviceMapping, CellBase, Instance, InstanceMetadata
from droveway.persistence.nova.late_writes import Carried, carry, changes, values, write

VALUES = [None, "old", "new", "other"]
WRITTEN = {
    *(f"server:{name}" for name in ("name", "description", "hostname", "access_ip_v4", "access_ip_v6", "lock")),
    *("metadata:key-0", "metadata:key-1", "tag:blue", "tag:green"),
    *(f"{kind}:{SERVER[:-3]}b0{each}" for kind in ("volume", "delete_on_termination") for each in range(2)),
    *(f"{kind}:{SERVER[:-3]}c0{each}" for kind in ("interface", "port") for each in range(2)),
}


def digests(value: str | None) -> dict[str, str]:
    return {} if value is None else {"key": value}


def by_hand(source: str | None, target: str | None, known: str | None, *, target_is_mapped: bool) -> str | None:
    """What the target has in the end, told case by case."""
    if source == known:
        return target
    if target == known:
        return source
    return target if target_is_mapped else source


@pytest.mark.parametrize("source", VALUES)
@pytest.mark.parametrize("target", VALUES)
@pytest.mark.parametrize("known", VALUES[:3])
@pytest.mark.parametrize("target_is_mapped", [False, True])
def test_each_case_of_a_comparison(
    source: str | None, target: str | None, known: str | None, target_is_mapped: bool
) -> None:
    carried = carry(digests(source), digests(target), digests(known), target_is_mapped=target_is_mapped)
    result = by_hand(source, target, known, target_is_mapped=target_is_mapped)
    assert ("key" in carried.takes) == (target != source == result)
    assert ("key" in carried.stays) == (result != source)
    assert ("key" in carried.clashes) == (source != target and known not in {source, target})
    assert carried.known.get("key") == (source if result == source else known)


@dataclasses.dataclass
class Pair:
    """Two copies and what both had: a model that remembers who wrote instead of comparing."""

    copies: list[dict[str, int]]
    agreed: dict[str, int]

    def carry(self, source: int, *, mapped: int) -> None:
        """Carry as a person would: each change that was made since both were last the same."""
        target = 1 - source
        for key in {*self.copies[0], *self.copies[1], *self.agreed}:
            present = [each.get(key) for each in self.copies]
            changed = [value != self.agreed.get(key) for value in present]
            if changed[source] and (not changed[target] or mapped == source):
                set_to(self.copies[target], key, present[source])
            if self.copies[0].get(key) == self.copies[1].get(key):
                set_to(self.agreed, key, self.copies[0].get(key))


def set_to(values: dict[str, int], key: str, value: int | None) -> None:
    if value is None:
        values.pop(key, None)
    else:
        values[key] = value


KEYS = st.sampled_from(["a", "b", "c"])
MAPS = st.dictionaries(KEYS, st.integers(0, 2))
WRITES = st.tuples(st.just("write"), st.integers(0, 1), KEYS, st.none() | st.integers(0, 2))
CARRIES = st.tuples(st.just("carry"), st.integers(0, 1), st.integers(0, 1), st.none())


@hypothesis.given(MAPS, st.lists(WRITES | CARRIES, max_size=20))
def test_a_history_of_writes_and_carries_is_as_the_naive_model_has_it(begin: dict[str, int], history: Any) -> None:
    model = Pair([dict(begin), dict(begin)], dict(begin))
    ours, known = [dict(begin), dict(begin)], {key: str(value) for key, value in begin.items()}
    for kind, copy, second, value in history:
        if kind == "write":
            for pair in (model.copies, ours):
                set_to(pair[copy], second, value)
            continue
        model.carry(copy, mapped=second)
        seen = [{key: str(value) for key, value in each.items()} for each in ours]
        carried = carry(seen[copy], seen[1 - copy], known, target_is_mapped=second == 1 - copy)
        for key in carried.takes:
            set_to(ours[1 - copy], key, ours[copy].get(key))
        known = carried.known
        assert ours == model.copies
        assert known == {key: str(value) for key, value in model.agreed.items()}


@hypothesis.given(MAPS, st.lists(st.tuples(KEYS, st.none() | st.integers(0, 2)), max_size=8))
def test_no_write_to_the_mapped_copy_is_lost_there_or_on_the_way_back(begin: dict[str, int], written: Any) -> None:
    """Carried to the other copy, then written on there once that is mapped, then carried back."""
    here, there = dict(begin), dict(begin)
    known = {key: str(value) for key, value in begin.items()}
    for key, value in written:
        set_to(here, key, value)
        told = [{name: str(number) for name, number in each.items()} for each in (here, there)]
        carried = carry(*told, known, target_is_mapped=False)
        for each in carried.takes:
            set_to(there, each, here.get(each))
        assert (there, carried.clashes) == (here, ())
        known, here, there = carried.known, there, here


def test_a_late_write_is_not_taken_for_the_old_value_on_the_way_back() -> None:
    """The digest of a value that one copy alone has is not renewed: else the carry back would bring the old one."""
    forward = carry({"key": "old"}, {"key": "new"}, {"key": "old"}, target_is_mapped=True)
    assert forward == Carried((), ("key",), (), {"key": "old"})
    back = carry({"key": "new"}, {"key": "old"}, forward.known, target_is_mapped=False)
    assert back == Carried(("key",), (), (), {"key": "new"})


# The rows.


@pytest.fixture(name="pair")
def fixture_pair(tmp_path: Path) -> Iterator[list[Database]]:
    """Two cells, each with a copy of one server and another server."""
    pair = [Database(sqlite_url(tmp_path / f"{name}.sqlite")) for name in ("first", "second")]
    for database in pair:
        CellBase.metadata.create_all(database.engine)
    with pair[0].write() as session:
        for server in (SERVER, OTHER):
            Filler(session).fill(server)
    for server in (SERVER, OTHER):
        with pair[0].read() as session:
            copy = copies.read(session, server)
        with pair[1].write() as session:
            copies.insert(session, copy, host="host1", node="host1", task_state=None, markers={})
    yield pair
    for database in pair:
        database.close()


def read(database: Database, server: str = SERVER) -> copies.Copy:
    with database.read() as session:
        return copies.read(session, server)


def bring(source: Database, target: Database, known: dict[str, str], *, target_is_mapped: bool = False) -> Carried:
    with target.write() as session:
        theirs, ours = read(source), copies.read(session, SERVER)
        carried = carry(values(theirs), values(ours), known, target_is_mapped=target_is_mapped)
        write(session, SERVER, changes(theirs, ours, carried.takes))
    return carried


def test_each_thing_that_a_user_writes_has_a_digest(pair: list[Database]) -> None:
    found = values(read(pair[0]))
    assert found.keys() == WRITTEN
    assert len(set(found.values())) == len(found), "equal values of two keys have two digests"
    assert all(len(each) == 64 and int(each, 16) >= 0 for each in found.values())
    assert values(read(pair[1])) == found


@pytest.mark.parametrize("name", user_writes.WRITES)
def test_what_a_user_writes_changes_its_digest_alone_and_is_carried(pair: list[Database], name: str) -> None:
    keys, act = user_writes.WRITES[name]
    source, target = pair
    known, other = values(read(source)), read(target, OTHER)
    with source.write() as session:
        act(session, SERVER)
    after = values(read(source))
    assert {key for key in {*known, *after} if known.get(key) != after.get(key)} == set(keys)
    carried = bring(source, target, known)
    assert carried == Carried(tuple(sorted(keys)), (), (), after)
    assert values(read(target)) == after
    assert user_writes.shown(read(target)) == user_writes.shown(read(source))
    assert read(target, OTHER) == other
    assert bring(source, target, carried.known) == Carried((), (), (), after)
    # And the same the other way: what the first copy was given goes back.
    with target.write() as session:
        user_writes.write_all(session, SERVER)
    final = values(read(target))
    bring(target, source, carried.known)
    assert values(read(source)) == final
    assert user_writes.shown(read(source)) == user_writes.shown(read(target))


def both(pair: list[Database], act: Callable[[orm.Session], None]) -> list[late_writes.Change]:
    """The changes that a carry would make after something was written into the first copy."""
    with pair[0].write() as session:
        act(session)
    theirs, ours = read(pair[0]), read(pair[1])
    return changes(theirs, ours, carry(values(theirs), values(ours), values(ours), target_is_mapped=False).takes)


def test_a_write_that_is_repeated_touches_no_row(pair: list[Database]) -> None:
    made = both(pair, lambda session: user_writes.write_all(session, SERVER))
    with pair[1].write() as session:
        write(session, SERVER, made)
        # A row that is written again would get the time of that write.
        for table in CellBase.metadata.tables.values():
            if "updated_at" in table.columns:
                session.execute(sa.update(table).values(updated_at=dt.datetime.fromisoformat("2001-02-03")))
    seen = []
    for _ in range(2):
        with pair[1].reading() as connection:
            seen.append([everything(connection, name) for name in CellBase.metadata.tables])
        with pair[1].write() as session:
            write(session, SERVER, made)
    assert seen[0] == seen[1]


def test_what_was_written_since_the_comparison_stays(pair: list[Database]) -> None:
    made = both(pair, lambda session: user_writes.write_all(session, SERVER))
    with pair[1].write() as session:
        mine = InstanceMetadata.instance_uuid == SERVER
        session.execute(sa.update(InstanceMetadata).where(mine, InstanceMetadata.deleted == 0).values(value="newer"))
        session.execute(sa.update(Instance).where(Instance.uuid == SERVER).values(display_name="newer"))
        volumes = sa.update(BlockDeviceMapping).where(BlockDeviceMapping.instance_uuid == SERVER)
        session.execute(volumes.values(volume_id="newer", delete_on_termination=None))
    with pair[1].write() as session:
        write(session, SERVER, made)
    copy = read(pair[1])
    assert copy.instance["display_name"] == "newer"
    assert {row["value"] for row in copy.rows["instance_metadata"] if row["key"] in {"key-0", "key-1"}} == {"newer"}
    kept = [row for row in copy.rows["block_device_mapping"] if row["uuid"][-3:] in {"b00", "b01"}]
    assert [(row["volume_id"], row["delete_on_termination"]) for row in kept] == [("newer", None)] * 2


def test_a_volume_that_comes_or_changes_has_no_attachment_yet(pair: list[Database]) -> None:
    made = both(pair, lambda session: user_writes.write_all(session, SERVER))
    with pair[1].write() as session:
        write(session, SERVER, made)
    volumes = {row["volume_id"]: row for row in read(pair[1]).rows["block_device_mapping"]}
    assert volumes.keys() == {"attached", "swapped"}
    assert {(row["attachment_id"], row["connection_info"]) for row in volumes.values()} == {(None, None)}


def test_a_flag_of_a_volume_leaves_its_attachment(pair: list[Database]) -> None:
    _, act = user_writes.WRITES["delete a volume with the server, or not"]
    made = both(pair, lambda session: act(session, SERVER))
    before = {row["uuid"]: row["attachment_id"] for row in read(pair[1]).rows["block_device_mapping"]}
    with pair[1].write() as session:
        write(session, SERVER, made)
    assert {row["uuid"]: row["attachment_id"] for row in read(pair[1]).rows["block_device_mapping"]} == before
    assert all(before.values())


def test_a_detached_volume_goes_as_nova_removes_it_and_may_come_again(pair: list[Database]) -> None:
    _, act = user_writes.WRITES["detach a volume"]
    made = both(pair, lambda session: act(session, SERVER))
    with pair[1].write() as session:
        write(session, SERVER, made)
    with pair[1].reading() as connection:
        where = f"uuid = '{SERVER[:-3]}b01'"
        (gone,) = everything(connection, "block_device_mapping", where)
    assert gone["deleted"] == gone["id"]
    assert gone["deleted_at"] is not None
    with pair[1].write() as session:
        write(session, SERVER, [late_writes.Change(each.kind, each.name, each.new, each.old) for each in made])
    assert {row["uuid"][-3:] for row in read(pair[1]).rows["block_device_mapping"]} == {"b00", "b01"}


def test_a_network_cache_that_is_missing_or_empty_has_no_ports(pair: list[Database]) -> None:
    def empty(session: orm.Session) -> None:
        session.execute(
            sa.text(f"UPDATE instance_info_caches SET network_info = NULL WHERE instance_uuid = '{SERVER}'")
        )

    made = both(pair, empty)
    assert {(each.kind, each.new) for each in made} == {("port", None)}
    with pair[1].write() as session:
        write(session, SERVER, made)
    assert [json.loads(row["network_info"]) for row in read(pair[1]).rows["instance_info_caches"]] == [[]]
    with pair[1].write() as session:
        session.execute(sa.text(f"DELETE FROM instance_info_caches WHERE instance_uuid = '{SERVER}'"))
        write(session, SERVER, made)
    assert read(pair[1]).rows["instance_info_caches"] == []


def test_a_change_does_not_show_what_it_holds(pair: list[Database]) -> None:
    made = both(pair, lambda session: user_writes.write_all(session, SERVER))
    assert "secret" not in repr(made)
