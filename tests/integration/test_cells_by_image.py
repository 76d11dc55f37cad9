"""Moves into another cell whose disks go through the image service: ends, images that stay, and what is refused.

What stands in the image service and on the hosts is read by the tests' own statements.
"""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from support.labs.operations import Stage, stage

from droveway.clients.embedded import image as embedded
from droveway.clients.image import Images
from droveway.errors import StepError
from droveway.flows.steps import moved_images
from droveway.flows.steps.hosts import transferring
from droveway.lab import operations
from droveway.persistence.journal.tables import Move

CLOUD = """
options: {cross_cell: true}
cells:
  cell1: {isolated: true, hosts: {host1: {}, host2: {}}}
  cell2: {hosts: {host3: {}, host4: {}}}
flavors:
  small: {vcpus: 1, memory_mb: 256, root_gb: 0, swap_mb: 1}
  large: {vcpus: 2, memory_mb: 512, root_gb: 0, swap_mb: 2}
  many: {vcpus: 1, memory_mb: 256, root_gb: 0, ephemeral_gb: 1, swap_mb: 1}
images: {base: {size_mb: 2}}
servers:
  web: {flavor: small, host: host1, image: base, ports: [{}], volumes: [{size_gb: 1}]}
  idle: {flavor: small, host: host1, image: base, state: stopped}
  near: {flavor: small, host: host3, image: base, state: stopped}
  many: {flavor: many, host: host1, image: base, state: stopped}
  booted: {flavor: tiny, host: host1, volumes: [{size_gb: 1, boot: true}]}
""".replace("images:", "  tiny: {vcpus: 1, memory_mb: 256, root_gb: 0}\nimages:")
LARGE = {"VCPU": 2, "MEMORY_MB": 512, "DISK_GB": 1}
AWAY = ("server", "migrate", "idle", "--to-cell", "cell2")


@pytest.fixture(name="lab")
def fixture_lab(tmp_path: Path) -> Iterator[Stage]:
    with stage(tmp_path / "lab", CLOUD) as made:
        yield made


def left_of(lab: Stage, server: str) -> list[str]:
    """The ids of the images that were made of the server; no file is there of an image that is not."""
    with contextlib.closing(sqlite3.connect(lab.root / "services.sqlite")) as connection:
        rows = dict(connection.execute("SELECT id, properties FROM images"))
    assert {path.name for path in (lab.root / "images").iterdir()} <= rows.keys()
    return [image for image, properties in rows.items() if server in properties]


def images(lab: Stage, name: str) -> list[str]:
    return left_of(lab, lab.id_of(name))


def result(lab: Stage, step: str, name: str, direction: str = "execute") -> dict[str, Any]:
    found = [row for row in lab.history(lab.move(name).id) if (row.step, row.direction) == (step, direction)]
    return dict(found[-1].result or {})


def disks(lab: Stage, host: str, name: str, ending: str = "") -> dict[str, str]:
    """The digest of each disk of the server on the host; of swap, which is made anew, none."""
    found = [path for path in lab.directory(host, name, ending).glob("disk*") if path.name != "disk.swap"]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in found if path.name != "disk.info"}


def once(
    step: str, phase: str, then: Callable[[], object], way: str = "execute"
) -> Callable[[str, str, str, str], None]:
    todo = [then]

    def probe(_move: str, at: str, direction: str, when: str) -> None:
        if (at, direction, when) == (step, way, phase) and todo:
            todo.pop()()

    return probe


def test_a_resize_out_of_an_isolated_cell_goes_by_image(lab: Stage) -> None:
    """R1-10: the way that was found, with its reason; no image outlives the copy; confirm as after any move."""
    before = lab.standing("web")
    lab.cli("server", "resize", "web", "--flavor", "large", "--to-cell", "cell2")
    shown = lab.json("move", "show", lab.move("web").id)
    assert (shown["transfer"], shown["source_cell"], shown["target_cell"]) == ("image", "cell1", "cell2")
    storage, copied = result(lab, "find_storage", "web"), result(lab, "copy_disks", "web")
    assert (storage["variant"], storage["transfer"]) == ("copy", "image")
    assert "cell cell1 is isolated" in storage["why"]
    assert (copied["variant"], [disk["name"] for disk in copied["disks"]]) == ("image", ["disk"])
    assert images(lab, "web") == []
    assert lab.standing("web") == before.verifying(shown["destination"], "large", LARGE)
    lab.assert_balanced()
    lab.cli("server", "confirm", "web")
    assert lab.standing("web") == before.confirmed(shown["destination"], "large", LARGE)
    lab.assert_balanced()


def test_every_disk_crosses_as_it_was_and_a_revert_brings_the_server_back(lab: Stage) -> None:
    """R1-08, R1-16: through the image service; the source's disks stand until the confirm."""
    before, was = lab.standing("many"), disks(lab, "host1", "many")
    assert set(was) == {"disk", "disk.eph0"}
    lab.cli("server", "migrate", "many", "--to-cell", "cell2")
    there = str(lab.move("many").dest_host)
    assert disks(lab, there, "many") == was == disks(lab, "host1", "many", "_resize")
    lab.cli("server", "revert", "many")
    assert lab.standing("many") == before
    assert disks(lab, "host1", "many") == was
    assert images(lab, "many") == []
    lab.assert_balanced()


@pytest.mark.parametrize(
    ("name", "end"),
    [*((name, end) for name in ("idle", "near") for end in ("confirm", "revert", "delete")), ("many", "confirm")],
)
def test_images_are_kept_until_the_end_of_the_move(lab: Stage, name: str, end: str) -> None:
    """Of each disk but swap, whichever way the disks went; the audit knows them meanwhile."""
    was = disks(lab, str(lab.server(name).host), name)
    lab.cli("server", "migrate", name, "--to-cell", "cell1" if name == "near" else "cell2", "--keep-image")
    assert lab.move(name).transfer == ("direct" if name == "near" else "image")
    kept = images(lab, name)
    found = {hashlib.sha256((lab.root / "images" / image).read_bytes()).hexdigest() for image in kept}
    assert (len(kept), found) == (len(was), set(was.values()))
    lab.assert_balanced()
    if end == "delete":
        server = lab.id_of(name)
        lab.cli("lab", "server", "delete", name)
        assert left_of(lab, server) == []
    else:
        lab.cli("server", end, name)
        assert images(lab, name) == []
    lab.assert_balanced()


def test_a_delete_finds_what_no_confirm_has_deleted(lab: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    server = lab.id_of("idle")
    lab.cli(*AWAY, "--keep-image")
    monkeypatch.setattr(moved_images.DeleteKeptImages, "perform", lambda *_: {})
    lab.cli("lab", "server", "delete", "idle")
    assert left_of(lab, server) == []


def test_a_server_on_a_volume_needs_no_image(lab: Stage) -> None:
    """R1-09: nor does anybody have to reach its source."""
    lab.cli("server", "migrate", "booted", "--to-cell", "cell2", "--keep-image")
    assert (lab.move("booted").state, lab.move("booted").transfer) == ("verifying", None)
    assert images(lab, "booted") == []
    lab.cli("server", "confirm", "booted")
    lab.assert_balanced()


def test_what_the_workers_cannot_reach_is_undone_before_the_guest_is_touched(lab: Stage) -> None:
    """R1-07: also what a plan says of that, and that the other direction is reached."""
    before = lab.standing("web")
    assert "cell cell1 is isolated" in lab.refused("move", "plan", "web", "--to-cell", "cell2", "--transfer", "direct")
    lab.cli("server", "migrate", "web", "--to-cell", "cell2", "--transfer", "direct", code=3)
    move = lab.move("web")
    assert (move.state, move.error_code, move.transfer) == ("failed", "source-unreachable", None)
    assert "stop_guest" not in [row.step for row in lab.history(move.id)]
    assert lab.standing("web") == before
    lab.cli("server", "migrate", "near", "--to-cell", "cell1", "--transfer", "direct")
    assert lab.json("move", "show", lab.move("near").id)["transfer"] == "direct"
    lab.assert_balanced()


def test_a_plan_says_which_way_and_a_move_holds_to_it(lab: Stage) -> None:
    plan = lab.json("move", "plan", "idle", "--to-cell", "cell2", "--keep-image")
    assert (plan["transfer"], "isolated" in plan["transfer_reason"]) == ("image", True)
    near = lab.json("move", "plan", "near", "--to-cell", "cell1")
    assert (near["transfer"], near["keep_image"]) == ("direct", False)
    own = lab.json("move", "plan", "near")
    assert own["transfer"] == ""
    assert "  transfer     image: " in lab.cli("move", "plan", "idle", "--to-cell", "cell2")
    assert "another request" in lab.refused("move", "create", "near", "--from-plan", near["id"], "--keep-image")
    assert "another request" in lab.refused("move", "create", "near", "--from-plan", near["id"], "--transfer", "image")
    lab.cli("move", "create", "idle", "--from-plan", plan["id"])
    assert len(images(lab, "idle")) == 1
    lab.cli("move", "create", "near", "--from-plan", near["id"])
    assert (lab.move("near").transfer, images(lab, "near")) == ("direct", [])


@pytest.mark.parametrize("option", [("--transfer", "image"), ("--keep-image",)], ids=lambda option: option[0])
def test_what_needs_an_image_service_or_another_cell_is_refused(
    lab: Stage, option: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = lab.refused("server", "migrate", "web", *option)
    assert f"{' '.join(option)} is for a move into another cell" in said
    monkeypatch.setattr("droveway.clients.embedded.cloud.Images", lambda *_, **__: None)
    assert "no image service is configured" in lab.refused(*AWAY, *option)
    assert "no image service is configured" in lab.refused("move", "plan", *AWAY[2:], *option)


def test_an_image_service_that_refuses_undoes_the_move(lab: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """R1-10: nothing is left of it anywhere, also of what was uploaded before."""
    before, was = lab.standing("many"), disks(lab, "host1", "many")
    real, sent = Images.upload, []

    def upload(self: Images, image: str, data: Any) -> None:
        sent.append(image)
        if len(sent) > 1:
            raise StepError("the image service has no room", code="image-failed")
        real(self, image, data)

    monkeypatch.setattr(Images, "upload", upload)
    lab.cli("server", "migrate", "many", "--to-cell", "cell2", code=3)
    assert (lab.move("many").state, lab.move("many").error_code) == ("failed", "image-failed")
    assert len(sent) == 2
    assert lab.standing("many") == before
    assert disks(lab, "host1", "many") == was
    assert images(lab, "many") == []
    lab.assert_balanced()


@pytest.mark.parametrize("cut", ["upload", "download"])
def test_a_stream_that_is_cut_is_gone_on_with(lab: Stage, cut: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that is started anew in the middle: an upload begins anew, a download goes on where it was."""
    was = disks(lab, "host1", "idle")
    real_write, real_stream, cuts, offsets = embedded._write, Images._stream, [], []

    def write(part: int, data: Any) -> tuple[int, str]:
        if not cuts:
            cuts.append("upload")
            next(iter(data))
            raise ConnectionResetError("the service was restarted")
        return real_write(part, data)

    def stream(self: Images, image: str, offset: int) -> Iterator[bytes]:
        offsets.append(offset)
        for chunk in real_stream(self, image, offset):
            yield chunk
            if not cuts:
                cuts.append("download")
                raise StepError("the image service does not answer", code="image-unavailable")

    if cut == "upload":
        monkeypatch.setattr(embedded, "_write", write)
    else:
        monkeypatch.setattr(Images, "_stream", stream)
    lab.cli(*AWAY)
    assert cuts == [cut]
    if cut == "download":
        assert any(offsets), "it began anew"
    assert disks(lab, str(lab.move("idle").dest_host), "idle") == was
    assert images(lab, "idle") == []
    lab.assert_balanced()


@pytest.mark.parametrize("way", ["fail", "delete"])
@pytest.mark.parametrize("step", ["create_images", "upload_disks", "copy_disks", "delete_images", "define_guest"])
def test_a_move_that_ends_in_the_middle_leaves_no_image(lab: Stage, step: str, way: str) -> None:
    before, was, server = lab.standing("idle"), disks(lab, "host1", "idle"), lab.id_of("idle")
    if way == "fail":
        lab.arm(step, "fail", phase="after")
        lab.cli(*AWAY, code=3)
        assert lab.standing("idle") == before
        assert disks(lab, "host1", "idle") == was
    else:
        with lab.running(probe=once(step, "after", lambda: operations.request_delete(lab.lab, "idle"))):
            lab.cli(*AWAY, code=3)
    assert left_of(lab, server) == []
    lab.assert_balanced()


def test_a_server_is_deleted_although_its_move_has_not_recorded_it_yet(lab: Stage) -> None:
    """R1-32: the images that the move was to keep are named by what it would have recorded."""
    server = lab.id_of("idle")
    with lab.running(probe=once("record_before", "before", lambda: operations.request_delete(lab.lab, "idle"))):
        lab.cli(*AWAY, "--keep-image", code=3)
    with lab.lab.journal.read() as session:
        (move,) = session.scalars(sa.select(Move).where(Move.server == server))
    assert (move.state, move.error_code) == ("cancelled", "deleted")
    assert left_of(lab, server) == []
    lab.assert_balanced()


@pytest.mark.parametrize("where", ["_resize", ""], ids=["source", "destination"])
def test_no_copy_goes_that_may_be_the_only_one(lab: Stage, where: str) -> None:
    """Rule 16: the undo of a download asks the source, which has lost its disk here, or has it still."""
    was = disks(lab, "host1", "idle")
    with lab.lab.layout.configuration.open("a", encoding="utf-8") as options:
        options.write("[conductor]\nretry_for = 0.2\n")

    def lose() -> None:
        if where:
            (lab.directory("host1", "idle", where) / "disk").unlink()
        raise StepError("a fault of this test")

    with lab.running(probe=once("delete_images", "after", lose)):
        lab.cli(*AWAY, code=4 if where else 3)
    move = lab.move("idle")
    if where:
        assert (move.state, move.error_code) == ("needs-operator", "last-copy")
        assert disks(lab, str(move.dest_host), "idle") == was
    else:
        assert disks(lab, "host1", "idle") == was
        lab.assert_balanced()


def test_no_copy_is_made_of_fewer_disks_than_there_are(lab: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever becomes of the journal: the source's disks are all that there is until the copy is whole."""
    monkeypatch.setattr(transferring.UploadDisks, "perform", lambda *_: {})
    was = disks(lab, "host1", "idle")
    lab.cli(*AWAY, code=3)
    assert lab.move("idle").error_code == "image-gone"
    assert disks(lab, "host1", "idle") == was


@pytest.mark.parametrize("disk", ["disk", "disk.eph0"])
def test_an_image_that_changed_on_the_way_is_no_disk(lab: Stage, disk: str) -> None:
    before = lab.standing("many")

    def spoil() -> None:
        image = dict(result(lab, "create_images", "many")["images"])[disk]
        path = lab.root / "images" / image
        path.write_bytes(b"?" + path.read_bytes()[1:])

    with lab.running(probe=once("upload_disks", "after", spoil)):
        lab.cli("server", "migrate", "many", "--host", "host3", "--to-cell", "cell2", code=3)
    assert lab.move("many").error_code == "checksum"
    assert lab.standing("many") == before
    assert images(lab, "many") == []
    lab.assert_balanced()


def test_hosts_that_are_not_upgraded_yet_move_servers_by_the_older_graph(lab: Stage) -> None:
    with lab.lab.layout.configuration.open("a", encoding="utf-8") as options:
        options.write("[upgrade_levels]\nworker = 6\n")
    for option in (("--keep-image",), ("--transfer", "image")):
        assert "take the pin out" in lab.refused(*AWAY, *option)
    lab.cli("server", "migrate", "near", "--to-cell", "cell1")
    move = lab.move("near")
    assert (move.state, move.transfer) == ("verifying", None)
    assert "delete_images" not in [row.step for row in lab.history(move.id)]
    assert lab.json("move", "show", move.id)["transfer"] == "direct"
    lab.cli("server", "revert", "near")
    lab.assert_balanced()


def test_the_configured_way_holds_for_moves_that_ask_for_none(lab: Stage) -> None:
    file = lab.lab.layout.configuration
    file.write_text(file.read_text(encoding="utf-8").replace("transfer = auto", "transfer = image"), encoding="utf-8")
    lab.cli("server", "migrate", "near", "--to-cell", "cell1")
    assert (lab.move("near").transfer, result(lab, "find_storage", "near")["why"]) == ("image", "it was asked for")
    lab.cli("server", "resize", "web", "--flavor", "large")
    assert lab.move("web").state == "verifying", "within a cell it holds for nothing"
    lab.assert_balanced()
