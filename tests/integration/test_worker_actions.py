"""Every action of a worker, killed at each of its effects in both directions, repeated, and undone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support import checksums
from support.rigs.worker_rig import (
    FLOW,
    MIB,
    MOVE,
    OTHER_MOVE,
    PROBE,
    SERVER,
    Cloud,
    KillAt,
    Killed,
    cloud,
)
from support.rigs.worker_stages import (
    SIZES,
    VARIANTS,
    Stage,
    Variant,
    asked,
    backward,
    confirmed,
    deleted,
    forward,
    killed_at,
    renamed,
)

from droveway.errors import DestinationFault, Fenced, Refused, StepError
from droveway.wire import commands
from droveway.wire.values import Direction
from droveway.workers.directories import Manifest, Marker
from droveway.workers.hypervisors import guests_log
from droveway.workers.hypervisors.base import Mark


@pytest.fixture(params=sorted(VARIANTS))
def variant(request: pytest.FixtureRequest) -> Variant:
    return VARIANTS[request.param]


@pytest.fixture
def site(tmp_path: Path, variant: Variant) -> Iterator[Cloud]:
    with cloud(tmp_path, shared=variant.shared) as made:
        made.make_server()
        made.serve("alpha")
        yield made


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Cloud]:
    """Two hosts with directories of their own."""
    with cloud(tmp_path) as made:
        made.make_server()
        made.serve("alpha")
        yield made


def wear_out(site: Cloud, stage: Stage) -> None:
    """Kill, repeat and undo one stage in every way; it ends done."""

    def execute(probe: KillAt | None = None) -> dict[str, Any]:
        value = site.run(stage.host, stage.action, stage.details, probe=probe)
        value.pop("free_bytes", None)  # others use this machine's disk too
        return value

    def undo(probe: KillAt | None = None) -> None:
        site.run(stage.host, stage.action, stage.details, direction="revert", probe=probe)

    before = site.snapshot()
    if stage.undone:
        undo()
        assert site.snapshot() == before, "undone before it began"
        for number in killed_at(execute):
            for _ in killed_at(undo):
                pass
            assert site.snapshot() == before, f"killed at effect {number}, undone"
            undo()
            assert site.snapshot() == before, f"killed at effect {number}, undone twice"
    else:
        for _ in killed_at(execute):
            pass
    value, after = execute(), site.snapshot()
    assert execute() == value or commands.ages(stage.action)
    assert site.snapshot() == after, "done twice"
    if stage.undone:
        undo()
        assert site.snapshot() == before, "undone when done"
        for _ in killed_at(execute):
            pass
        assert site.snapshot() == after, "killed at each effect, then done"


def test_every_stage_of_a_move_survives_kills_repeats_and_undos(site: Cloud, variant: Variant) -> None:
    begin = site.snapshot()
    stages = forward(site, variant)
    for stage in stages:
        wear_out(site, stage)
    moved = site.hosts[variant.destination].hypervisor.guest(SERVER)
    assert moved is not None
    assert (moved.vcpus, moved.memory_mb, moved.mark) == (2, 128, Mark(move=MOVE, epoch=1))
    for stage in reversed(stages):
        site.run(stage.host, stage.action, stage.details, direction="revert")
    assert site.snapshot() == begin


def test_every_stage_of_a_revert_survives_kills_repeats_and_undos(site: Cloud, variant: Variant) -> None:
    begin, text = site.snapshot(), site.definition()
    for stage in forward(site, variant):
        site.run(stage.host, stage.action, stage.details)
    site.run("alpha", "offer_disks", commands.OfferDisks(peer=variant.destination), direction="revert")
    for stage in backward(site, variant, text):
        wear_out(site, stage)
    assert site.snapshot() == begin


@pytest.mark.parametrize("keep", [False, True])
def test_every_stage_of_a_confirm_survives_kills_and_repeats(site: Cloud, variant: Variant, keep: bool) -> None:
    for stage in forward(site, variant):
        site.run(stage.host, stage.action, stage.details)
    there = variant.destination
    *checks, discard, purge, keep_copy = confirmed(site, variant, keep=keep)
    for stage in (*checks, discard):
        wear_out(site, stage)
    directories = site.hosts["alpha"].directories
    kept = f"{SERVER}_keep-{MOVE}"
    assert not directories.exists(f"{SERVER}_resize")
    assert directories.exists(kept) == keep
    assert (site.hosts["alpha"].hypervisor.guest(SERVER) is None) == (there != "alpha")
    assert site.hosts[there].directories.marker(SERVER) is not None
    wear_out(site, purge)
    assert not directories.exists(kept)
    assert site.hosts[there].directories.marker(SERVER) is not None
    wear_out(site, keep_copy)
    assert site.hosts[there].directories.marker(SERVER) is None


def test_what_only_looks_changes_nothing_however_it_is_killed(pair: Cloud) -> None:
    before = pair.snapshot()
    for stage in asked():
        wear_out(pair, stage)
    assert pair.snapshot() == before


def test_what_was_kept_goes_when_its_server_is_deleted_before_the_step_ends(pair: Cloud) -> None:
    """The step is entered again, and finds what it had kept."""
    pair.run("alpha", "set_aside")
    keep = commands.DiscardSource(undefine=True, keep=True)
    kept = pair.run("alpha", "discard_source", keep)["kept"]
    assert pair.run("alpha", "discard_source", keep) == {"kept": kept}
    assert pair.hosts["alpha"].directories.manifest(kept) is not None
    assert pair.run("alpha", "discard_source", commands.DiscardSource(undefine=True)) == {"kept": ""}
    assert not pair.hosts["alpha"].directories.exists(kept)


def copied(pair: Cloud) -> str:
    """The move's copy on beta, with a guest that is off; returns the name that it is to be kept under."""
    stages = forward(pair, VARIANTS["copy"])
    for stage in stages[: [each.action for each in stages].index("define_guest") + 1]:
        pair.run(stage.host, stage.action, stage.details)
    return f"{SERVER}_keep-{MOVE}"


@pytest.mark.parametrize("action", ["copy_disks", "discard_destination"])
def test_a_copy_that_is_kept_for_a_dead_host_is_renamed_and_goes_when_it_may(pair: Cloud, action: str) -> None:
    kept, beta = copied(pair), pair.hosts["beta"]
    disks = beta.directories.disks(SERVER)
    wear_out(pair, renamed())
    assert pair.run("beta", "rename_copy") == {"kept": kept}
    assert (beta.directories.disks(kept), beta.directories.exists(SERVER)) == (disks, False)
    assert beta.hypervisor.guest(SERVER) is None
    if action == "copy_disks":
        details = commands.CopyDisks(variant="pull", source="alpha", address="", probe=PROBE)
        pair.run("beta", action, details, direction="revert")
    else:
        pair.run("beta", action, commands.DiscardDestination(same_directory=False))
    assert not list(beta.directories.instances.glob(f"{SERVER}*"))


def test_what_is_no_copy_of_the_move_keeps_its_name(pair: Cloud) -> None:
    """The server's own disks; another move's copy; what took the copy's place while the host was about to rename it."""
    before = pair.snapshot()
    assert pair.run("alpha", "rename_copy") == {"kept": ""}
    assert pair.snapshot() == before
    kept, beta = copied(pair), pair.hosts["beta"]
    place, aside = beta.directories.path(SERVER), pair.folder / "aside"

    def swap(_step: str, _direction: str, _phase: str, effect: str) -> None:
        if effect == "rename":
            place.rename(aside)
            place.mkdir()

    with pytest.raises(StepError, match="is not the copy of move") as caught:
        pair.run("beta", "rename_copy", probe=swap)
    assert (caught.value.error_code, place.is_dir(), beta.directories.exists(kept)) == ("foreign", True, False)


def test_a_copy_in_use_keeps_its_name(pair: Cloud) -> None:
    copied(pair)
    pair.hosts["beta"].hypervisor.start(SERVER, lambda: None)
    before = pair.snapshot()
    with pytest.raises(StepError, match="stop it before") as caught:
        pair.run("beta", "rename_copy")
    assert caught.value.error_code == "guest-runs"
    assert pair.snapshot() == before


def test_nothing_is_purged_that_the_move_did_not_keep(pair: Cloud) -> None:
    """Nor before its time, where a conductor that knows no dates asks for it as for any debt; nor behind the fence."""
    directories, purge = pair.hosts["alpha"].directories, commands.PurgeKept(of_move=MOVE)
    pair.run("alpha", "set_aside")
    kept = pair.run("alpha", "discard_source", commands.DiscardSource(undefine=True, keep=True))["kept"]
    before = pair.snapshot()
    with pytest.raises(StepError, match="stays on alpha until its time is over"):
        pair.run("alpha", "purge_kept", purge, direction="revert")
    pair.run("alpha", "purge_kept", commands.PurgeKept(of_move=OTHER_MOVE))
    with pytest.raises(Refused, match="break their schema"):
        pair.run("alpha", "purge_kept", commands.PurgeKept(of_move="../x"))
    pair.set_epoch(2)
    with pytest.raises(Fenced):
        pair.run("alpha", "purge_kept", purge)
    pair.set_epoch(1)
    assert pair.snapshot() == before
    directories.write_record(kept, Manifest(move=OTHER_MOVE, epoch=1, server=SERVER, disks=[]))
    before = pair.snapshot()
    with pytest.raises(StepError, match="is not what move") as caught:
        pair.run("alpha", "purge_kept", purge)
    assert caught.value.error_code == "foreign"
    assert pair.snapshot() == before


def test_what_is_kept_is_not_taken_for_purged_while_its_file_system_is_away(pair: Cloud) -> None:
    pair.run("alpha", "set_aside")
    pair.run("alpha", "discard_source", commands.DiscardSource(undefine=True, keep=True), step="discard_source")
    instances = pair.hosts["alpha"].directories.instances
    instances.rename(pair.folder / "unmounted")
    instances.mkdir()
    with pytest.raises(StepError, match="mount it again"):
        pair.run("alpha", "purge_kept", commands.PurgeKept(of_move=MOVE), step="discard_source")


def test_every_stage_of_a_delete_survives_kills_and_repeats(pair: Cloud) -> None:
    """R1-32: nothing of the server stays on its host."""
    pair.hosts["alpha"].hypervisor.start(SERVER, lambda: None)
    for stage in deleted():
        wear_out(pair, stage)
    left = {name: found for name, found in pair.snapshot().items() if found}
    assert left == {}


def test_a_guest_that_runs_is_not_removed(pair: Cloud) -> None:
    pair.hosts["alpha"].hypervisor.start(SERVER, lambda: None)
    before = pair.snapshot()
    with pytest.raises(StepError) as caught:
        pair.run("alpha", "remove_guest")
    assert caught.value.error_code == "guest-runs"
    assert pair.snapshot() == before


def test_a_running_server_moves_and_comes_back_with_its_bytes(site: Cloud, variant: Variant) -> None:
    source = site.hosts["alpha"].hypervisor
    source.start(SERVER, lambda: None)
    source.write_mark(SERVER, "before")
    text = site.definition()
    for stage in forward(site, variant, power_on=True):
        value = site.run(stage.host, stage.action, stage.details)
        if stage.action == "stop_guest":
            assert value == {"ran": True}
    there = site.hosts[variant.destination].hypervisor
    assert there.probe_guest(SERVER) == {"boots": 2, "mark": "before", "vcpus": 2, "memory_mb": 128}
    there.write_mark(SERVER, "after")
    for stage in backward(site, variant, text, power_on=True):
        site.run(stage.host, stage.action, stage.details)
    assert source.probe_guest(SERVER) == {"boots": 2, "mark": "before", "vcpus": 1, "memory_mb": 64}
    assert guests_log.overlaps(site.log) == []


def test_the_copy_says_what_it_moved(pair: Cloud) -> None:
    stages = forward(pair, VARIANTS["copy"])
    values = {stage.action: pair.run(stage.host, stage.action, stage.details) for stage in stages}
    assert values["find_storage"] == {"shared": False}
    (disk,) = values["copy_disks"]["disks"]
    assert (disk["name"], disk["size"]) == ("disk", 5 * MIB)
    aside = pair.hosts["alpha"].directories.path(f"{SERVER}_resize", "disk")
    assert disk["checksum"] == checksums.recorded(aside)
    assert disk["sent"] == disk["allocated"] == values["copy_disks"]["bytes"] < 2 * MIB
    assert [disk["name"] for disk in values["fit_disks"]["disks"]] == ["disk", "disk.eph0", "disk.swap"]
    assert [disk["virtual_size"] for disk in values["fit_disks"]["disks"]] == [6 * MIB, 2 * MIB, MIB]
    assert pair.hosts["beta"].directories.formats(SERVER) == dict.fromkeys(("disk", "disk.eph0", "disk.swap"), "raw")


def test_a_probe_is_seen_on_shared_storage_only(tmp_path: Path) -> None:
    for shared in (False, True):
        with cloud(tmp_path / str(shared), shared=shared) as made:
            made.make_server()
            for stage in forward(made, VARIANTS["shared"])[:2]:
                value = made.run(stage.host, stage.action, stage.details)
            assert value == {"shared": shared}


def test_an_error_while_looking_for_the_probe_is_not_no(pair: Cloud) -> None:
    instances = pair.hosts["alpha"].hypervisor.instances
    instances.rename(instances.with_name("away"))
    instances.write_text("no directory")
    with pytest.raises(StepError, match="find_storage failed on alpha"):
        pair.run("alpha", "find_storage", commands.FindStorage(probe=PROBE))
    instances.unlink()


def test_a_destination_without_room_is_at_fault(pair: Cloud) -> None:
    details = commands.CheckDestination(
        definition=pair.definition(), vcpus=1, memory_mb=64, disk_bytes=1 << 60, probe=PROBE
    )
    with pytest.raises(DestinationFault, match="host beta has") as caught:
        pair.run("beta", "check_destination", details)
    assert (caught.value.error_code, caught.value.host) == ("disk-full", "beta")


def test_disks_of_a_running_guest_are_not_set_aside(pair: Cloud) -> None:
    pair.hosts["alpha"].hypervisor.start(SERVER, lambda: None)
    with pytest.raises(StepError) as caught:
        pair.run("alpha", "set_aside")
    assert caught.value.error_code == "guest-runs"
    assert pair.hosts["alpha"].directories.exists(SERVER)


def test_what_another_move_set_aside_is_named_and_left_alone(pair: Cloud) -> None:
    directories = pair.hosts["alpha"].directories
    directories.create(f"{SERVER}_resize")
    directories.write_record(f"{SERVER}_resize", Manifest(move=OTHER_MOVE, epoch=1, server=SERVER, disks=[]))
    for direction in ("execute", "revert"):
        with pytest.raises(StepError, match=OTHER_MOVE) as caught:
            pair.run("alpha", "set_aside", direction=direction)
        assert caught.value.error_code == "foreign"
    assert directories.exists(SERVER)


@pytest.mark.parametrize("keep", [False, True])
def test_what_another_move_set_aside_is_not_discarded(pair: Cloud, keep: bool) -> None:
    directories = pair.hosts["alpha"].directories
    pair.run("alpha", "set_aside")
    theirs = Manifest(move=OTHER_MOVE, epoch=1, server=SERVER, disks=[])
    directories.write_record(f"{SERVER}_resize", theirs)
    before = pair.snapshot()
    with pytest.raises(StepError, match=OTHER_MOVE):
        pair.run("alpha", "discard_source", commands.DiscardSource(undefine=True, keep=keep))
    with pytest.raises(StepError, match=OTHER_MOVE):
        pair.run("alpha", "offer_disks", commands.OfferDisks(peer="beta"))
    assert pair.snapshot() == before


def test_a_directory_that_is_no_copy_of_the_move_is_not_discarded(pair: Cloud) -> None:
    before = pair.snapshot()
    with pytest.raises(StepError, match="it is left alone"):
        pair.run("alpha", "discard_destination", commands.DiscardDestination(same_directory=False))
    with pytest.raises(StepError, match="it is left alone"):
        pair.run("alpha", "fit_disks", SIZES)
    pair.run(
        "alpha",
        "copy_disks",
        direction="revert",
        details=commands.CopyDisks(variant="local", source="alpha", address="", probe=PROBE),
    )
    assert pair.snapshot() == before


def test_a_directory_in_the_way_of_the_copy_is_the_destinations_fault(pair: Cloud) -> None:
    directories = pair.hosts["beta"].directories
    directories.create(SERVER)
    directories.write_record(SERVER, Marker(move=OTHER_MOVE, epoch=1, server=SERVER, host="beta"))
    stages = {stage.action: stage for stage in forward(pair, VARIANTS["copy"])}
    with pytest.raises(DestinationFault, match=OTHER_MOVE):
        pair.run("beta", "copy_disks", stages["copy_disks"].details)
    pair.run("beta", "copy_disks", stages["copy_disks"].details, direction="revert")
    assert directories.marker(SERVER) == Marker(move=OTHER_MOVE, epoch=1, server=SERVER, host="beta")


def test_what_another_living_move_marked_is_neither_stopped_nor_started_nor_undefined(pair: Cloud) -> None:
    hypervisor = pair.hosts["alpha"].hypervisor
    hypervisor.define(
        SERVER,
        pair.definition(),
        vcpus=None,
        memory_mb=None,
        disks=[pair.hosts["alpha"].directories.path(SERVER, "disk")],
        volumes=[],
        ports=[],
        mark=Mark(move=OTHER_MOVE, epoch=1),
    )
    define = commands.DefineGuest(definition=pair.definition(), vcpus=1, memory_mb=64, volumes=[], ports=[])
    attempts: list[tuple[str, msgspec.Struct, Direction]] = [
        ("stop_guest", commands.StopGuest(grace=1, restart=True), "execute"),
        ("stop_guest", commands.StopGuest(grace=1, restart=True), "revert"),
        ("start_guest", commands.StartGuest(power_on=True), "execute"),
        ("define_guest", define, "execute"),
        ("define_guest", define, "revert"),
        ("discard_source", commands.DiscardSource(undefine=True), "execute"),
        ("discard_destination", commands.DiscardDestination(same_directory=True), "execute"),
        ("remove_guest", commands.NoDetails(), "execute"),
    ]
    pair.set_epoch(3, OTHER_MOVE)
    before = pair.snapshot()
    for action, details, direction in attempts:
        with pytest.raises(StepError, match=OTHER_MOVE) as caught:
            pair.run("alpha", action, details, direction=direction)
        assert caught.value.error_code == "foreign"
    assert pair.snapshot() == before
    pair.set_epoch(b"ended", OTHER_MOVE)
    pair.run("alpha", "stop_guest", commands.StopGuest(grace=1, restart=False))


def test_the_destinations_own_guest_is_not_undefined_as_the_source(pair: Cloud) -> None:
    for stage in forward(pair, VARIANTS["copy"]):
        pair.run(stage.host, stage.action, stage.details)
    with pytest.raises(StepError, match="is the destination's"):
        pair.run("beta", "discard_source", commands.DiscardSource(undefine=True))
    assert pair.hosts["beta"].hypervisor.guest(SERVER) is not None


def test_the_probe_goes_with_the_copy_or_with_the_undo(pair: Cloud) -> None:
    directories = pair.hosts["beta"].directories
    stages = forward(pair, VARIANTS["copy"])
    pair.run("beta", "check_destination", stages[0].details)
    assert directories.has_probe(PROBE)
    for _ in range(2):
        pair.run("beta", "check_destination", stages[0].details, direction="revert")
        assert not directories.has_probe(PROBE)
    copied = [stage.action for stage in stages].index("copy_disks")
    for stage in stages[: copied + 1]:
        pair.run(stage.host, stage.action, stage.details)
    assert not directories.has_probe(PROBE)


def test_a_guest_that_cannot_start_is_proved_never_started(pair: Cloud) -> None:
    pair.hosts["alpha"].directories.path(SERVER, "disk").rename(pair.folder / "away")
    with pytest.raises(DestinationFault) as caught:
        pair.run("alpha", "start_guest", commands.StartGuest(power_on=True))
    assert caught.value.error_code == "start-failed"
    pair.run("alpha", "start_guest", commands.StartGuest(power_on=True), direction="revert")


def test_a_start_that_happened_is_found_again_and_not_undone(pair: Cloud) -> None:
    def kill_once_started(step: str, direction: str, phase: str, effect: str) -> None:
        if effect == "started":
            raise Killed

    details = commands.StartGuest(power_on=True)
    with pytest.raises(Killed):
        pair.run("alpha", "start_guest", details, probe=kill_once_started)
    with pytest.raises(StepError) as caught:
        pair.run("alpha", "start_guest", details, direction="revert")
    assert caught.value.error_code == "start-unknown"
    assert pair.run("alpha", "start_guest", details) == {"started": True, "running": True, "starts": 1}


def test_a_guest_that_seems_to_run_uncounted_after_a_refused_start_is_not_told_as_started(
    pair: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a move goes to verifying with a guest that nobody started."""
    hypervisor = pair.hosts["alpha"].hypervisor
    guest = hypervisor.guest

    def refuse(server: str, fence: Callable[[], None]) -> None:
        fence()
        monkeypatch.setattr(hypervisor, "guest", lambda _: msgspec.structs.replace(guest(server), running=True))
        raise DestinationFault("the permission is void")

    monkeypatch.setattr(hypervisor, "start", refuse)
    with pytest.raises(StepError) as caught:
        pair.run("alpha", "start_guest", commands.StartGuest(power_on=True))
    assert caught.value.error_code == "start-unknown"


def test_a_guest_that_goes_off_at_once_is_not_told_as_running(pair: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was started, so that nothing is undone; asked again, it is started again."""
    hypervisor = pair.hosts["alpha"].hypervisor
    start = hypervisor.start

    def start_and_die(server: str, fence: Callable[[], None]) -> None:
        start(server, fence)
        hypervisor.stop(server, grace=0, fence=lambda: None)

    details = commands.StartGuest(power_on=True)
    with monkeypatch.context() as dying:
        dying.setattr(hypervisor, "start", start_and_die)
        with pytest.raises(StepError) as caught:
            pair.run("alpha", "start_guest", details)
    assert (caught.value.error_code, caught.value.host) == ("went-off", "alpha")
    assert not isinstance(caught.value, DestinationFault)
    with pytest.raises(StepError) as undone:
        pair.run("alpha", "start_guest", details, direction="revert")
    assert undone.value.error_code == "start-unknown"
    assert pair.run("alpha", "start_guest", details) == {"started": True, "running": True, "starts": 2}


def test_a_guest_that_somebody_started_by_hand_is_told_as_running(pair: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody counted its start, and it runs."""
    hypervisor = pair.hosts["alpha"].hypervisor
    guest = hypervisor.guest
    monkeypatch.setattr(hypervisor, "guest", lambda _: msgspec.structs.replace(guest(SERVER), running=True))
    monkeypatch.setattr(hypervisor, "start", lambda _server, _fence: None)
    value = pair.run("alpha", "start_guest", commands.StartGuest(power_on=True))
    assert value == {"started": True, "running": True, "starts": 0}


def test_a_guest_that_ran_and_cannot_start_again_is_unknown(pair: Cloud) -> None:
    hypervisor = pair.hosts["alpha"].hypervisor
    details = commands.StartGuest(power_on=True)
    pair.run("alpha", "start_guest", details)
    hypervisor.stop(SERVER, grace=5, fence=lambda: None)
    pair.hosts["alpha"].directories.path(SERVER, "disk").rename(pair.folder / "away")
    with pytest.raises(StepError) as caught:
        pair.run("alpha", "start_guest", details)
    assert caught.value.error_code == "start-unknown"


def test_nothing_irreversible_happens_behind_the_fence(site: Cloud, variant: Variant) -> None:
    text = site.definition()
    stages = [*forward(site, variant, power_on=True)]
    fenced = {"set_aside", "copy_disks", "start_guest"}
    for stage in stages:
        if stage.action in fenced:
            site.set_epoch(2)
            before = site.hosts["alpha"].directories.exists(SERVER)
            with pytest.raises(Fenced):
                site.run(stage.host, stage.action, stage.details)
            assert site.hosts["alpha"].directories.exists(SERVER) == before
            guest = site.hosts[variant.destination].hypervisor.guest(SERVER)
            assert guest is None or not guest.running
            site.set_epoch(1)
        site.run(stage.host, stage.action, stage.details)
    site.run(variant.destination, "stop_guest", commands.StopGuest(grace=5, restart=False), step="stop")
    site.set_epoch(b"ended")
    for action, details in (
        ("discard_source", commands.DiscardSource(undefine=False)),
        ("restore_disks", commands.RestoreDisks(same_directory=variant.same_directory)),
        ("remove_guest", commands.NoDetails()),
    ):
        with pytest.raises(Fenced):
            site.run("alpha", action, details)
    assert site.hosts["alpha"].directories.manifest(f"{SERVER}_resize") is not None
    assert text


def test_a_link_in_the_instances_directory_is_refused(pair: Cloud) -> None:
    directories = pair.hosts["alpha"].directories
    directories.rename(SERVER, "elsewhere")
    directories.path(SERVER).symlink_to(directories.path("elsewhere"))
    with pytest.raises(StepError, match="links are not followed") as caught:
        pair.run("alpha", "set_aside")
    assert (caught.value.error_code, caught.value.host) == ("link", "alpha")


def test_a_disk_that_is_a_link_is_refused(pair: Cloud) -> None:
    disk = pair.hosts["alpha"].directories.path(SERVER, "disk")
    disk.rename(pair.folder / "secret")
    disk.symlink_to(pair.folder / "secret")
    with pytest.raises(StepError, match="is a link"):
        pair.run("alpha", "set_aside")


def test_describe_tells_what_the_host_holds(pair: Cloud) -> None:
    found = msgspec.convert(pair.run("alpha", "describe_guest"), type=commands.GuestState)
    assert (found.defined, found.running, found.starts, found.move, found.set_aside) == (True, False, 0, "", False)
    assert [disk.name for disk in found.disks] == ["disk", "disk.swap"]
    pair.run("alpha", "set_aside")
    aside = msgspec.convert(pair.run("alpha", "describe_guest"), type=commands.GuestState)
    assert (aside.set_aside, aside.disks) == (True, [])
    nothing = msgspec.convert(pair.run("beta", "describe_guest"), type=commands.GuestState)
    assert not nothing.defined


def test_a_damaged_set_aside_is_found_before_a_revert(pair: Cloud) -> None:
    pair.run("alpha", "set_aside")
    disk = pair.hosts["alpha"].directories.path(f"{SERVER}_resize", "disk")
    with disk.open("r+b") as file:
        file.truncate(MIB)
    with pytest.raises(StepError) as caught:
        pair.run("alpha", "check_set_aside")
    assert caught.value.error_code == "source-changed"
    disk.unlink()
    with pytest.raises(StepError, match="is gone"):
        pair.run("alpha", "check_set_aside")


def test_notes_of_a_step_outlive_its_attempts(pair: Cloud) -> None:
    pair.hosts["alpha"].hypervisor.start(SERVER, lambda: None)
    details = commands.StopGuest(grace=5, restart=False)
    assert pair.run("alpha", "stop_guest", details) == {"ran": True}
    assert pair.run("alpha", "stop_guest", details) == {"ran": True}
    assert pair.hosts["alpha"].journal.noted(f"{FLOW}.stop_guest", "ran", 0) == 1
