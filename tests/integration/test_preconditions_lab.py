"""What is looked at when a move, its confirm or its revert is asked for: quotas, locks, and what somebody changed."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from support.labs.operations import Stage, changes, photograph, stage

from droveway.engines.operations import end_facts, ends, move_requests
from droveway.lab.session import Lab
from droveway.persistence.journal.tables import Move
from droveway.persistence.nova.api import Flavor, ProjectUserQuota, Quota
from droveway.persistence.nova.cell import Instance, Migration
from droveway.scheduler.facts import EndFacts

CLOUD = """
cells: {cell1: {hosts: {host1: {}, host2: {}}}, cell2: {hosts: {host3: {}, host4: {}}}}
flavors:
  small: {vcpus: 1, memory_mb: 256, root_gb: 1}
  large: {vcpus: 4, memory_mb: 512, root_gb: 1}
  gone: {vcpus: 1, memory_mb: 256, root_gb: 1}
quotas: {default: {cores: 9, ram_mb: 4096}}
images: {base: {size_mb: 1}}
servers:
  web: {flavor: small, host: host1, image: base}
  wide: {flavor: large, host: host1, image: base, state: stopped}
  other: {flavor: gone, host: host3, image: base, state: stopped}
"""


@pytest.fixture(scope="module", name="built")
def fixture_built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("rules") / "lab", CLOUD) as made:
        yield made


@pytest.fixture(name="lab")
def fixture_lab(built: Stage) -> Iterator[Stage]:
    """The lab with its servers as they were."""
    yield built
    limit(built, None)
    built.bring_back()
    built.assert_balanced()


def limit(lab: Stage, cores: int | None, *, user: bool = False) -> None:
    """Give the lab's project, or its user in it, a quota of its own; None takes both away."""
    identity = lab.lab.identity
    with lab.lab.api.write() as session:
        session.execute(sa.delete(Quota))
        session.execute(sa.delete(ProjectUserQuota))
        if user:
            session.add(
                ProjectUserQuota(project_id=identity.project, user_id=identity.user, resource="cores", hard_limit=cores)
            )
        elif cores is not None:
            session.add(Quota(project_id=identity.project, resource="cores", hard_limit=cores))


@contextlib.contextmanager
def changed(
    lab: Stage, model: type[Instance | Migration], key: sa.ColumnElement[bool], **columns: object
) -> Iterator[None]:
    """Somebody else changes a row, and changes it back."""
    with lab.lab.cell_databases["cell1"].write() as session:
        row = session.scalars(sa.select(model).where(key)).one()
        kept = {name: getattr(row, name) for name in columns}
        session.execute(sa.update(model).where(key).values(**columns))
    yield
    with lab.lab.cell_databases["cell1"].write() as session:
        session.execute(sa.update(model).where(key).values(**kept))


def test_a_resize_is_held_to_the_quota_and_a_migration_is_not(lab: Stage) -> None:
    """Servers of every cell count: 1, 4 and 1 cores are used, and 3 more asked for; the new ones count at once."""
    for cores, user, whose in ((8, False, "project"), (8, True, "user")):
        limit(lab, cores, user=user)
        said = lab.refused("server", "resize", "web", "--flavor", "large")
        assert "3 more vCPUs" in said
        assert f"{whose} {getattr(lab.lab.identity, whose)} uses 6 of the 8" in said
    limit(lab, 0)
    lab.cli("server", "migrate", "web")
    lab.cli("server", "revert", "web")
    limit(lab, 9)
    lab.cli("server", "resize", "web", "--flavor", "large")
    limit(lab, None)
    assert "uses 9 of the 9" in lab.refused("server", "resize", "other", "--flavor", "large")


def test_the_new_flavor_counts_while_the_move_waits(lab: Stage) -> None:
    """Nova counts what the row has: after a resize to fewer cores the freed ones can be used up, and then are."""
    lab.cli("server", "resize", "wide", "--flavor", "small")
    limit(lab, 5)
    before = photograph(lab.root)
    said = lab.refused("server", "revert", "wide")
    assert "3 more vCPUs" in said
    assert "uses 3 of the 5" in said
    assert "confirm the move instead" in said
    assert changes(before, photograph(lab.root)) == []
    limit(lab, 6)
    lab.cli("server", "revert", "wide")
    assert lab.server("wide").flavor == "large"


@pytest.mark.parametrize("verb", ["confirm", "revert"])
def test_what_somebody_changed_meanwhile_is_refused_by_name(lab: Stage, verb: str) -> None:
    """The server's state, its task and the migration, for the server's and for the move's command."""
    lab.cli("server", "resize", "web", "--flavor", "large")
    move = lab.move("web").id
    of_server, of_move = Instance.uuid == lab.id_of("web"), Migration.uuid == move
    for model, key, columns, says in (
        (Instance, of_server, {"vm_state": "error"}, "server web is ERROR"),
        (Instance, of_server, {"task_state": "rebooting"}, "task rebooting"),
        (Migration, of_move, {"status": "error"}, f"the migration of move {move[:8]} is error"),
    ):
        with changed(lab, model, key, **columns):
            before = photograph(lab.root)
            assert says in lab.refused("server", verb, "web")
            assert says in lab.refused("move", verb, move)
            assert changes(before, photograph(lab.root)) == []


def test_a_lock_hinders_no_administrator_and_stays(lab: Stage) -> None:
    """Whoever may write the lab is one; the lock is shown, and is there when the move has ended."""
    with changed(lab, Instance, Instance.uuid == lab.id_of("wide"), locked=True, locked_by="owner"):
        lab.cli("server", "migrate", "wide", "--confirm", "auto")
        assert lab.json("server", "show", "wide")["locked"] is True
    assert lab.json("server", "show", "wide")["locked"] is False


def test_a_server_whose_flavor_was_deleted_is_migrated_with_its_own(lab: Stage) -> None:
    """As in Nova, where only the new flavor of a resize has to be on offer."""
    with lab.lab.api.write() as session:
        session.execute(sa.delete(Flavor).where(Flavor.name == "gone"))
    assert "flavor gone is unknown" in lab.refused("server", "resize", "web", "--flavor", "gone")
    before = lab.standing("other")
    lab.cli("server", "migrate", "other")
    assert lab.standing("other").host == "host4"
    lab.cli("server", "revert", "other")
    assert lab.standing("other") == before


def test_what_another_revert_writes_first_is_no_refusal(lab: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that ask at once: the second is told that the move is reverting, not that somebody changed its migration."""
    lab.cli("server", "resize", "wide", "--flavor", "small")
    move = lab.move("wide").id

    def after_another(of: Lab, found: Move) -> EndFacts:
        move_requests.file_request(lab.lab, move, move_requests.revert)
        return dataclasses.replace(gathered(of, found), migration="reverting")

    gathered = end_facts.of_end
    with monkeypatch.context() as patched:
        patched.setattr(end_facts, "of_end", after_another)
        ends.require_end(lab.lab, lab.move("wide"), "revert")
    assert f"move {move[:8]} of wide is reverting" in lab.refused("server", "revert", "wide")
    lab.cli("move", "resume")
    assert lab.server("wide").flavor == "large"
