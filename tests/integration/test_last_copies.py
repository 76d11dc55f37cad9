"""A copy of a server's disks is deleted only after the other one was shown, and never once it is the server's own."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from support.labs.operations import Stage, stage

from droveway.persistence.nova.cell import Instance
from droveway.workers.directories import Directories

CLOUD = """
cells: {cell1: {hosts: {host1: {}, host2: {}, host3: {}, host4: {shared: nfs1}, host5: {shared: nfs1}}}}
flavors: {small: {vcpus: 1, memory_mb: 256, root_gb: 1}}
images: {base: {size_mb: 1}}
servers:
  web: {flavor: small, host: host1, image: base}
  mail: {flavor: small, host: host4, image: base}
"""


@pytest.fixture(name="lab")
def fixture_lab(tmp_path: Path) -> Iterator[Stage]:
    with stage(tmp_path / "lab", CLOUD) as made:
        with made.lab.layout.configuration.open("a") as file:
            file.write("[conductor]\nretry_for = 0.2\n")
        yield made


def once(step: str, phase: str, then: Callable[[], None], way: str = "revert") -> Callable[[str, str, str, str], None]:
    """A probe that does something the first time that the step, or its undo, is there."""
    todo = [then]

    def probe(_move: str, at: str, direction: str, when: str) -> None:
        if (at, direction, when) == (step, way, phase) and todo:
            todo.pop()()

    return probe


def test_a_copy_stays_while_its_source_shows_nothing(lab: Stage, tmp_path: Path) -> None:
    """As after a confirm that the journal's copy does not know of: what was set aside is gone."""
    before, aside = lab.standing("web"), lab.directory("host1", "web", "_resize")
    hidden = tmp_path / "hidden"
    with lab.running(probe=_failing("move_ports", once("copy_disks", "before", lambda: _move(aside, hidden)))):
        lab.cli("server", "migrate", "web", "--host", "host2", code=4)
    move = lab.move("web")
    assert (move.state, move.error_code) == ("needs-operator", "last-copy")
    assert "it may be the only one" in str(move.error)
    copy = lab.directory("host2", "web")
    assert (copy / "disk").stat().st_size == 2**30
    _move(hidden, aside)
    lab.cli("move", "retry", move.id, code=3)
    assert lab.standing("web") == before
    lab.assert_balanced()


def test_a_copy_stays_while_its_source_is_cut_short(lab: Stage) -> None:
    aside = lab.directory("host1", "web", "_resize")
    kept: list[bytes] = []

    def cut() -> None:
        kept.append((aside / "disk").read_bytes()[:4096])
        (aside / "disk").write_bytes(b"")

    with lab.running(probe=_failing("move_ports", once("copy_disks", "before", cut))):
        lab.cli("server", "migrate", "web", "--host", "host2", code=4)
    assert lab.move("web").error_code == "last-copy"
    assert (lab.directory("host2", "web") / "disk").read_bytes()[:4096] == kept[0]


@pytest.mark.parametrize("length", [0, 2**29])
def test_a_confirm_keeps_the_source_of_a_copy_that_was_cut_short(lab: Stage, length: int) -> None:
    lab.cli("server", "migrate", "web", "--host", "host2")
    with (lab.directory("host2", "web") / "disk").open("r+b") as disk:
        disk.truncate(length)
    lab.cli("server", "confirm", "web", code=3)
    move = lab.move("web")
    assert move.state == "verifying"
    assert "disk of server" in str(move.error)
    assert "is gone or not whole" in str(move.error)
    assert (lab.directory("host1", "web", "_resize") / "disk").stat().st_size == 2**30
    lab.cli("server", "revert", "web")
    assert lab.standing("web").runs == ["host1"]


def test_a_revert_keeps_the_copy_while_its_source_shows_nothing(lab: Stage, tmp_path: Path) -> None:
    """The source is asked again right before its copy on the destination goes; what it said before proves nothing."""
    before, own = lab.standing("web"), lab.directory("host1", "web")
    hidden = tmp_path / "hidden"
    lab.cli("server", "migrate", "web", "--host", "host2")
    with lab.running(once("discard_destination", "before", lambda: _move(own / "disk", hidden), "execute")):
        lab.cli("server", "revert", "web", code=4)
    move = lab.move("web")
    assert (move.state, move.error_code) == ("needs-operator", "last-copy")
    assert "host1 does not hold the disks of server web whole" in str(move.error)
    assert (lab.directory("host2", "web") / "disk").stat().st_size == 2**30
    _move(hidden, own / "disk")
    lab.cli("move", "retry", move.id)
    assert lab.standing("web") == before
    lab.assert_balanced()


def test_a_confirm_keeps_the_source_of_a_copy_that_was_cut_short_since_it_was_checked(lab: Stage) -> None:
    """The destination is asked again right before the source's copy goes."""
    lab.cli("server", "migrate", "web", "--host", "host2")
    copy, kept = lab.directory("host2", "web") / "disk", bytearray()

    def cut() -> None:
        kept.extend(copy.read_bytes())
        with copy.open("r+b") as disk:
            disk.truncate(4096)

    with lab.running(once("discard_source", "before", cut, "execute")):
        lab.cli("server", "confirm", "web", code=3)
    move = lab.move("web")
    assert (move.state, move.error_code) == ("verifying", "not-begun")
    assert "host2 does not hold the disks of server web whole" in str(move.error)
    assert (lab.directory("host1", "web", "_resize") / "disk").stat().st_size == 2**30
    copy.write_bytes(kept)
    lab.cli("server", "confirm", "web")
    assert lab.standing("web").directories == ["host2/ID"]


def test_what_was_confirmed_is_no_copy_to_be_healed_away(lab: Stage) -> None:
    """Nova evacuates the server from the host that its move brought it to, and that host comes back."""
    lab.cli("server", "migrate", "web", "--host", "host2")
    lab.cli("server", "confirm", "web")
    own = lab.directory("host2", "web")
    elsewhere = lab.directory("host3", "web")
    shutil.copytree(own, elsewhere)
    (elsewhere / "droveway.json").unlink(missing_ok=True)
    _evacuate(lab, "web", "host2", "host3")
    lab.cli("audit", "--heal", "--yes", code=3)
    assert (own / "disk").stat().st_size == 2**30


def test_a_rename_that_lands_late_deletes_no_disks_that_are_in_use_again(
    lab: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On shared storage it may wait in the kernel until the server has its own directory again."""
    before, own, aside = lab.standing("mail"), lab.directory("host4", "mail"), lab.directory("host4", "mail", "_resize")
    copy, todo, rename = tmp_path / "copy", ["once"], Directories.rename

    def late(self: Directories, old: str, new: str) -> None:
        if ".gone-" in new and todo:
            todo.pop()
            own.rename(copy)
            shutil.copytree(aside, own)
            (own / "droveway-manifest.json").unlink()
        rename(self, old, new)

    monkeypatch.setattr(Directories, "rename", late)
    with lab.running(probe=_failing("move_ports", lambda *_: None)):
        lab.cli("server", "migrate", "mail", "--host", "host5", code=4)
        assert (lab.move("mail").error_code, todo) == ("foreign", [])
        assert (own / "disk").read_bytes()[:4096] == (aside / "disk").read_bytes()[:4096]
        shutil.rmtree(own)
        copy.rename(own)
        lab.cli("move", "retry", lab.move("mail").id, code=3)
    assert lab.standing("mail") == before
    lab.assert_balanced()


def _evacuate(lab: Stage, name: str, old: str, new: str) -> None:
    """Let rows and guest be on the new host, as Nova's evacuation leaves them."""
    server = lab.id_of(name)
    lab.cli("lab", "server", "stop", name)
    guest = lab.lab.hypervisor(old).guest(server)
    assert guest is not None
    lab.lab.hypervisor(old).undefine(server)
    lab.lab.hypervisor(new).define(
        server,
        guest.definition,
        vcpus=None,
        memory_mb=None,
        disks=[lab.directory(new, name) / "disk"],
        volumes=[],
        ports=[],
        mark=None,
    )
    with lab.lab.cell_databases["cell1"].write() as session:
        session.execute(sa.update(Instance).where(Instance.uuid == server).values(host=new, node=new))


def _failing(step: str, probe: Callable[[str, str, str, str], None]) -> Callable[[str, str, str, str], None]:
    def both(move: str, at: str, direction: str, when: str) -> None:
        probe(move, at, direction, when)
        if (at, direction, when) == (step, "execute", "before"):
            raise RuntimeError("it broke")

    return both


def _move(old: Path, new: Path) -> None:
    old.rename(new)
