"""What is looked at when a shelve or an unshelve is asked for, and the row that is the move; nobody runs it here."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from support.labs.operations import Stage, changes, photograph, stage

from droveway.engines.operations import shelving
from droveway.errors import NotFound, Refused
from droveway.flows import registry
from droveway.persistence.journal import moves, requests
from droveway.persistence.journal.tables import Move
from droveway.persistence.nova.cell import Instance, InstanceSystemMetadata

CLOUD = """
cells:
  cell1: {hosts: {host1: {az: az1}, host2: {}, shut: {enabled: false}, tiny: {memory_mb: 128}}}
  cell2: {hosts: {far: {}}}
flavors:
  small: {vcpus: 1, memory_mb: 256, root_gb: 1}
  eph: {vcpus: 1, memory_mb: 256, root_gb: 1, ephemeral_gb: 1}
images: {base: {size_mb: 1}}
groups: {g: {policy: anti-affinity}}
servers:
  web: {flavor: small, host: host1, image: base, ports: [{}]}
  idle: {flavor: small, host: host1, volumes: [{size_gb: 1, boot: true}], state: stopped}
  eph: {flavor: eph, host: host2, image: base, group: g}
  old: {flavor: small, cell: cell1, image: base, state: shelved_offloaded}
  pinned: {flavor: small, cell: cell1, image: base, state: shelved_offloaded, az: az1}
  apart: {flavor: small, cell: cell1, image: base, state: shelved_offloaded, group: g}
  vol: {flavor: small, cell: cell1, volumes: [{size_gb: 1, boot: true}], state: shelved_offloaded}
"""


@pytest.fixture(scope="module", name="built")
def fixture_built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("shelving") / "lab", CLOUD) as made:
        yield made


@pytest.fixture(name="lab")
def fixture_lab(built: Stage, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    """The lab, where a shelve and an unshelve go by the graph of a migration, which asks hosts for about the same."""
    monkeypatch.setattr(shelving.eligibility, "chosen", lambda _kind, _pinned: registry.latest("migrate"))
    yield built
    with built.lab.journal.write() as session:
        for move in moves.open_moves(session):
            requests.cancel(session, move, frozenset())


def move_of(lab: Stage, server: str) -> Move:
    with lab.lab.journal.read() as session:
        return session.scalars(sa.select(Move).where(Move.active_server == lab.id_of(server))).one()


def test_a_shelve_is_a_move_from_its_host_to_none(lab: Stage) -> None:
    move = shelving.shelve(lab.lab, "web", reason="winter")
    found = move_of(lab, "web")
    assert (found.id, found.kind, found.state, found.reason) == (move.id, "shelve", "queued", "winter")
    assert (found.source_cell, found.source_host, found.target_host, found.dest_cell) == ("cell1", "host1", None, None)
    assert (found.old_flavor, found.new_flavor, found.dest_host) == ("small", "small", None)


def test_an_unshelve_is_a_move_from_no_host(lab: Stage) -> None:
    shelving.unshelve(lab.lab, "old")
    found = move_of(lab, "old")
    assert (found.kind, found.source_host, found.target_host, found.source_cell) == ("unshelve", "", None, "cell1")
    shown = json.loads(lab.cli("move", "show", found.id, "-f", "json"))
    assert (shown["source"], shown["destination"]) == (None, None)
    for words in (("list",), ("list", "--stuck"), ("show", found.id), ("history", found.id)):
        assert "None" not in lab.cli("move", *words)
    assert "unshelve old, - → ?" in lab.cli("move", "show", found.id)


def test_the_books_balance_while_they_wait(lab: Stage) -> None:
    shelving.shelve(lab.lab, "web")
    shelving.unshelve(lab.lab, "old")
    lab.assert_balanced()


def test_a_named_host_and_the_own_cell_are_taken(lab: Stage) -> None:
    shelving.unshelve(lab.lab, "old", host="host2", to_cell="cell1")
    assert (move_of(lab, "old").target_host, move_of(lab, "old").dest_cell) == ("host2", None)


def test_a_server_on_a_volume_needs_no_image(lab: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab.lab, "cloud", dataclasses.replace(lab.lab.cloud, images=None))
    assert shelving.unshelve(lab.lab, "vol").kind == "unshelve"
    assert shelving.shelve(lab.lab, "idle").kind == "shelve"
    for ask, server in ((shelving.shelve, "web"), (shelving.unshelve, "old")):
        with pytest.raises(Refused, match="no image service is configured"):
            ask(lab.lab, server)


def test_the_zone_and_the_group_of_the_server_bind(lab: Stage) -> None:
    with pytest.raises(Refused, match="it is in zone nova, not az1"):
        shelving.unshelve(lab.lab, "pinned", host="host2")
    with pytest.raises(Refused, match="its anti-affinity group may have 1 on a host"):
        shelving.unshelve(lab.lab, "apart", host="host2")
    shelving.unshelve(lab.lab, "pinned", host="host1")
    shelving.unshelve(lab.lab, "apart", host="host1")


def test_what_is_refused_changes_nothing(lab: Stage) -> None:
    """By the commands: one sentence, 2, and not a byte."""
    before = photograph(lab.root)
    for words, says in (
        (("shelve", "eph"), "--discard-ephemeral"),
        (("shelve", "old"), "is SHELVED_OFFLOADED already: droveway server unshelve old"),
        (("shelve", "nobody"), "nobody"),
        (("unshelve", "web"), "only one that is SHELVED_OFFLOADED can be unshelved"),
        (("unshelve", "old", "--to-cell", "cell2"), "or leave --to-cell out"),
        (("unshelve", "old", "--host", "far"), "a move stays in its cell"),
        (("unshelve", "old", "--to-cell", "cell9"), "cell cell9 is unknown"),
        (("unshelve", "old", "--host", "host9"), "host host9 is unknown"),
        (("unshelve", "old", "--host", "shut"), "host shut is disabled"),
        (("unshelve", "old", "--host", "tiny"), "it has no room for 256 MEMORY_MB"),
    ):
        lab.cli("server", *words, code=2)
        assert says in lab.error
        assert "\n" not in lab.error.strip()
    assert changes(before, photograph(lab.root)) == []


def test_an_ephemeral_disk_goes_where_it_is_given_up(lab: Stage) -> None:
    assert shelving.shelve(lab.lab, "eph", discard_ephemeral=True).kind == "shelve"


def test_a_server_has_one_move_at_a_time(lab: Stage) -> None:
    shelving.unshelve(lab.lab, "old")
    with pytest.raises(Refused, match="under way, and a server has one move at a time"):
        shelving.unshelve(lab.lab, "old")


def test_what_the_services_and_rows_say_is_looked_at(lab: Stage) -> None:
    """Each fact that the rules judge, read from where it stands."""
    server, placement = lab.id_of("old"), lab.lab.cloud.placement
    model = InstanceSystemMetadata
    named = (model.instance_uuid == server, model.key == "shelved_image_id")
    with lab.lab.cells.database("cell1").write() as session:
        image = session.scalars(sa.select(model.value).where(*named)).one()
        session.execute(sa.update(model).where(*named).values(value="0" * 8))
    with pytest.raises(Refused, match="image 00000000, which holds the root disk of server old, does not exist"):
        shelving.unshelve(lab.lab, "old")
    with lab.lab.cells.database("cell1").write() as session:
        session.execute(sa.update(model).where(*named).values(value=image))
        session.execute(sa.update(Instance).where(Instance.uuid == server).values(config_drive="True"))
    with pytest.raises(Refused, match="has a config drive"):
        shelving.unshelve(lab.lab, "old")
    with lab.lab.cells.database("cell1").write() as session:
        session.execute(sa.update(Instance).where(Instance.uuid == server).values(config_drive=""))
    identity = lab.lab.identity
    provider = next(each.uuid for each in placement.providers())
    placement.ensure_allocation(server, {provider: {"VCPU": 1}}, project_id=identity.project, user_id=identity.user)
    with pytest.raises(Refused, match="holds an allocation in Placement all the same"):
        shelving.unshelve(lab.lab, "old")
    placement.release(server)
    shelving.unshelve(lab.lab, "old")


def test_an_unknown_server_is_not_found(lab: Stage) -> None:
    for ask in (shelving.shelve, shelving.unshelve):
        with pytest.raises(NotFound, match="nobody"):
            ask(lab.lab, "nobody")
