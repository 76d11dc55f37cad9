"""A plan's estimate of the downtime follows the bytes to copy, what past moves took, and else the configuration."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from droveway.cli.view.downtime import NOT_COUNTED, Downtime
from droveway.conf import settings
from droveway.engines.operations import downtime
from droveway.flows import registry
from droveway.persistence.database import Database, sqlite_url
from droveway.persistence.journal import migrate
from droveway.persistence.journal.tables import Move, MoveStep

MIB, GIB = 1 << 20, 1 << 30
BEGAN = dt.datetime.fromisoformat("2026-11-01")


class Site:
    """What the estimate reads: the journal and the options."""

    def __init__(self, journal: Database, conf: Any) -> None:
        self.journal, self.conf = journal, conf
        self._moves = 0

    def past(
        self,
        *,
        sent: int = 0,
        copying: float = 0.0,
        pause: float = 10.0,
        hosts: tuple[str, str] = ("host1", "host2"),
        **told: Any,
    ) -> None:
        """Add a move that kept its guest off for ``pause`` seconds besides ``copying``; newer than those before."""
        self._moves += 1
        began = BEGAN + dt.timedelta(hours=self._moves)
        move, flow, kind = str(uuid.uuid4()), str(uuid.uuid4()), told.get("kind", "migrate")
        upload = told.get("upload", 0.0)
        runs = [
            ("stop_guest", 1.0, {"ran": True}, None),
            *([("upload_disks", upload, {}, None)] if upload else []),
            ("copy_disks", copying, {"bytes": sent}, told.get("error")),
            ("start_guest", pause - 1.0, {"running": True}, None),
        ]
        with self.journal.write() as session:
            session.add(
                Move(
                    id=move,
                    kind=kind,
                    server=str(uuid.uuid4()),
                    server_name="web",
                    state="done",
                    source_cell="cell1",
                    source_host=hosts[0],
                    dest_host=hosts[1],
                    old_flavor="small",
                    new_flavor="small",
                    policy="auto",
                    storage=told.get("storage", "copy"),
                    transfer="image" if upload else None,
                    created_at=began,
                    updated_at=began,
                )
            )
            session.flush()
            at = began
            for step, seconds, result, error in runs * (2 if told.get("twice") else 1):
                ended = at + dt.timedelta(seconds=seconds)
                session.add(
                    MoveStep(
                        move_id=move,
                        flow_uuid=flow,
                        flow=kind,
                        step=step,
                        direction="execute",
                        started_at=at,
                        ended_at=ended,
                        result=result,
                        error=error,
                    )
                )
                at = ended

    def estimate(self, *, moved: int | None = GIB, storage: str = "copy", **told: Any) -> dict[str, Any]:
        """Return the record for a server on host1 that is to go to host2."""
        server = SimpleNamespace(
            host="host1",
            vm_state=told.get("vm_state", "active"),
            boots_from_volume=told.get("boots_from_volume", False),
        )
        current = SimpleNamespace(name="m1.large", root_gb=told.get("root_gb", 40), ephemeral_gb=0)
        facts: Any = SimpleNamespace(server=server, current=current)
        site: Any = self
        return downtime.estimate(
            site,
            facts,
            registry.latest(told.get("kind", "migrate")),
            storage=storage,
            moved=moved,
            transfer=told.get("transfer", ""),
            destination="host2",
        )


@pytest.fixture(name="site")
def fixture_site(tmp_path: Path) -> Iterator[Site]:
    (tmp_path / "droveway.conf").write_text("[conductor]\nplan_rate = 50\nplan_pause = 12\n", encoding="utf-8")
    journal = Database(sqlite_url(tmp_path / "journal.sqlite"))
    migrate.sync(journal)
    yield Site(journal, settings.load(tmp_path / "droveway.conf"))
    journal.close()


def told(record: dict[str, Any]) -> list[str]:
    return Downtime(record).human_readable().split("\n")


def test_without_a_past_move_the_defaults_are_used_and_named(site: Site) -> None:
    found = site.estimate(moved=500 * MIB)
    assert (found["seconds"], found["rate"], found["pause"]) == (10.0 + 12.0, 50 * MIB, 12.0)
    assert (found["rate_moves"], found["pause_moves"]) == (0, 0)
    assert told(found) == [
        "about 22 s",
        "500.0 MiB at 50.0 MiB/s, the default of [conductor] plan_rate: as much as the disks hold now",
        "12 s for the steps beside the copy, the default of [conductor] plan_pause",
        NOT_COUNTED,
    ]


def test_the_estimate_follows_the_bytes(site: Site) -> None:
    once, twice = (site.estimate(moved=count * GIB)["seconds"] for count in (1, 2))
    assert twice - once == pytest.approx(GIB / (50 * MIB), abs=0.1)


def test_the_estimate_follows_the_rate_and_the_pause_of_past_moves(site: Site) -> None:
    for _ in range(2):
        site.past(sent=10 * GIB, copying=100.0, pause=8.0)
    found = site.estimate(moved=40 * GIB)
    assert (found["rate"], found["rate_moves"], found["rate_between_hosts"]) == (round(GIB / 10), 2, True)
    assert (found["seconds"], found["pause"], found["pause_moves"]) == (408.0, 8.0, 2)
    assert told(found)[:3] == [
        "about 6 min 48 s",
        "40.0 GiB at 102.4 MiB/s, as measured in the last 2 moves between these hosts: as much as the disks hold now",
        "8.0 s for the steps beside the copy, as measured in the last 2 moves",
    ]


def test_moves_between_these_hosts_go_before_those_between_others(site: Site) -> None:
    site.past(sent=GIB, copying=10.0, hosts=("host3", "host4"))
    found = site.estimate()
    assert (found["rate"], found["rate_between_hosts"]) == (round(GIB / 10), False)
    assert "as measured in the last move between any hosts" in told(found)[1]
    site.past(sent=GIB, copying=5.0)
    site.past(sent=GIB, copying=20.0, hosts=("host3", "host4"))
    found = site.estimate()
    assert (found["rate"], found["rate_between_hosts"]) == (round(GIB / 5), True)


def test_a_small_copy_hardly_counts_for_the_rate(site: Site) -> None:
    site.past(sent=100 * GIB, copying=100.0)
    site.past(sent=MIB, copying=1.0)
    assert site.estimate()["rate"] == pytest.approx(GIB, rel=0.02)


def test_only_the_newest_moves_count(site: Site) -> None:
    site.past(sent=GIB, copying=1000.0, pause=500.0)
    for _ in range(downtime.MOST):
        site.past(sent=GIB, copying=1.0, pause=5.0)
    found = site.estimate()
    assert (found["rate"], found["rate_moves"], found["pause"]) == (GIB, downtime.MOST, 5.0)


def test_one_move_that_rested_for_long_does_not_spoil_the_pause(site: Site) -> None:
    for pause in (5.0, 6.0, 9000.0):
        site.past(sent=GIB, copying=1.0, pause=pause)
    assert site.estimate()["pause"] == 6.0


@pytest.mark.parametrize("spoilt", [{"error": {"code": "fault"}}, {"twice": True}])
def test_a_copy_that_failed_or_ran_twice_measures_nothing(site: Site, spoilt: dict[str, Any]) -> None:
    site.past(sent=GIB, copying=1.0, **spoilt)
    found = site.estimate()
    assert (found["rate_moves"], found["pause_moves"]) == (0, 0)


def test_disks_that_go_by_image_are_estimated_by_those_that_went_so(site: Site) -> None:
    kind = "cross_cell_migrate"
    site.past(sent=GIB, copying=1.0, pause=5.0)
    site.past(sent=GIB, copying=30.0, upload=70.0, pause=25.0, kind=kind)
    image, direct = (site.estimate(kind=kind, transfer=transfer) for transfer in ("image", "direct"))
    assert (image["rate"], image["pause"], image["seconds"]) == (round(GIB / 100), 25.0, 125.0)
    assert (direct["rate"], direct["pause"]) == (GIB, 25.0)
    assert site.estimate(kind="migrate")["pause"] == 5.0


@pytest.mark.parametrize("storage", ["shared", "volume", "same-host"])
def test_where_no_disk_is_sent_the_other_steps_are_all(site: Site, storage: str) -> None:
    site.past(sent=GIB, copying=1.0, pause=5.0)
    found = site.estimate(moved=0, storage=storage)
    assert (found["seconds"], found["bytes"], found["rate"]) == (5.0, 0, None)
    assert told(found)[1].startswith("no disk is sent")
    assert ("the copy that the host makes" in told(found)[1]) == (storage == "same-host")


def test_an_installation_that_cannot_look_at_the_disks_takes_the_most_that_the_flavor_allows(site: Site) -> None:
    found = site.estimate(moved=None, storage="unknown")
    assert (found["bytes"], found["at_most"]) == (40 * GIB, True)
    assert told(found)[0].startswith("at most 13 min")
    assert told(found)[1].endswith(": the most that the disks of flavor m1.large can hold")
    assert site.estimate(moved=None, storage="unknown", boots_from_volume=True)["seconds"] == 12.0


def test_hosts_that_were_found_to_share_their_storage_send_nothing(site: Site) -> None:
    site.past(storage="shared")
    found = site.estimate(moved=None, storage="unknown")
    assert (found["bytes"], found["at_most"], found["seconds"]) == (0, False, 10.0)


def test_a_flavor_without_a_size_of_the_root_disk_is_told_as_what_nobody_knows(site: Site) -> None:
    found = site.estimate(moved=None, storage="unknown", root_gb=0)
    assert (found["seconds"], found["bytes"]) == (None, None)
    assert told(found)[:2] == [
        "unknown",
        "flavor m1.large sets no size of the root disk, so only host host1 knows how large it is",
    ]


def test_a_stopped_server_is_told_to_be_off_anyway(site: Site) -> None:
    assert told(site.estimate(vm_state="stopped"))[0].endswith("the server, which is stopped, cannot be started")


def test_the_reference_has_every_key_of_the_estimate(site: Site) -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "output.rst").read_text(encoding="utf-8")
    assert [key for key in site.estimate() if f"``{key}``" not in page] == []
