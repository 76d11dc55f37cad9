"""The actions of a move in their order on two hosts, forward and back, and kills at each of their effects."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec
from support.rigs.worker_rig import MIB, MOVE, PORT, PROBE, VOLUME, Cloud, KillAt, Killed

from droveway.wire import commands

IMAGE = "6f1c6d0e-5d0a-4e0e-9a63-0d9c1d3b7a10"
CONNECTIONS = commands.Connections(volumes=[VOLUME], ports=[PORT])
SIZES = commands.FitDisks(root_bytes=6 * MIB, ephemeral_bytes=2 * MIB, swap_bytes=MIB)


class Variant(NamedTuple):
    destination: str
    shared: bool
    copy: str

    @property
    def same_directory(self) -> bool:
        return self.copy == "local"


VARIANTS = {
    "copy": Variant("beta", shared=False, copy="pull"),
    "shared": Variant("beta", shared=True, copy="local"),
    "same-host": Variant("alpha", shared=False, copy="local"),
}


class Stage(NamedTuple):
    host: str
    action: str
    details: msgspec.Struct
    undone: bool = True


def forward(site: Cloud, variant: Variant, *, power_on: bool = False) -> list[Stage]:
    there, text = variant.destination, site.definition()
    copy = commands.CopyDisks(
        variant="pull" if variant.copy == "pull" else "local",
        source="alpha",
        address=site.hosts["alpha"].transfer_address,
        probe=PROBE,
    )
    define = commands.DefineGuest(
        definition=text,
        vcpus=2,
        memory_mb=128,
        volumes=[VOLUME],
        ports=[PORT],
        previous=text if there == "alpha" else "",
    )
    check = commands.CheckDestination(definition=text, vcpus=2, memory_mb=128, disk_bytes=MIB, probe=PROBE)
    return [
        Stage(there, "check_destination", check),
        Stage("alpha", "find_storage", commands.FindStorage(probe=PROBE)),
        Stage("alpha", "stop_guest", commands.StopGuest(grace=5, restart=power_on)),
        Stage("alpha", "disconnect", CONNECTIONS),
        Stage("alpha", "set_aside", commands.NoDetails()),
        Stage("alpha", "offer_disks", commands.OfferDisks(peer=there)),
        Stage(there, "copy_disks", copy),
        Stage(there, "fit_disks", SIZES, undone=False),
        Stage(there, "connect", CONNECTIONS),
        Stage(there, "define_guest", define),
        Stage(there, "start_guest", commands.StartGuest(power_on=power_on)),
    ]


def backward(site: Cloud, variant: Variant, text: str, *, power_on: bool = False) -> list[Stage]:
    there = variant.destination
    prepare = commands.PrepareSourceGuest(
        definition=text, volumes=[VOLUME], ports=[PORT], previous=site.definition() if there == "alpha" else ""
    )
    discard = commands.DiscardDestination(same_directory=variant.same_directory)
    return [
        Stage("alpha", "check_set_aside", commands.NoDetails()),
        Stage(there, "stop_guest", commands.StopGuest(grace=5, restart=power_on)),
        Stage(there, "disconnect", CONNECTIONS),
        Stage("alpha", "restore_disks", commands.RestoreDisks(same_directory=variant.same_directory)),
        Stage("alpha", "prepare_source_guest", prepare),
        Stage("alpha", "start_guest", commands.StartGuest(power_on=power_on), undone=False),
        Stage(there, "discard_destination", discard, undone=False),
    ]


def confirmed(site: Cloud, variant: Variant, *, keep: bool = False) -> list[Stage]:
    there = variant.destination
    return [
        Stage(there, "check_copy", commands.CheckCopy(vcpus=2, memory_mb=128)),
        Stage("alpha", "check_set_aside", commands.NoDetails()),
        Stage("alpha", "discard_source", commands.DiscardSource(undefine=there != "alpha", keep=keep), undone=False),
        Stage("alpha", "purge_kept", commands.PurgeKept(of_move=MOVE), undone=False),
        Stage(there, "keep_copy", commands.KeepCopy(disks=["disk"]), undone=False),
    ]


def deleted() -> list[Stage]:
    return [
        Stage("alpha", "stop_guest", commands.StopGuest(grace=0, restart=False), undone=False),
        Stage("alpha", "disconnect", CONNECTIONS, undone=False),
        Stage("alpha", "remove_guest", commands.NoDetails(), undone=False),
    ]


def renamed() -> Stage:
    """Of a copy whose source is dead."""
    return Stage("beta", "rename_copy", commands.NoDetails(), undone=False)


def uploaded() -> Stage:
    """Of a server whose image of `IMAGE` waits for its data."""
    return Stage("alpha", "upload_disks", commands.UploadDisks(disks=[commands.ImageOfDisk(disk="disk", image=IMAGE)]))


def downloaded(disks: Sequence[commands.DownloadedDisk] = ()) -> Stage:
    return Stage("beta", "download_disks", commands.DownloadDisks(disks=[*disks], probe=PROBE))


def asked() -> list[Stage]:
    """What only looks, whatever the move has come to."""
    return [
        Stage("beta", "probe_transfer", commands.ProbeTransfer(source="alpha", address="unix:/nowhere")),
        Stage("alpha", "describe_guest", commands.NoDetails()),
        Stage("alpha", "check_guest", commands.CheckGuest(probe_seconds=1.0)),
        Stage("alpha", "check_health", commands.CheckGuest(probe_seconds=1.0)),
        Stage("alpha", "prepare_start", commands.NoDetails()),
    ]


def every(site: Cloud) -> list[Stage]:
    """Each list of above: what ``tests/integration/test_worker_actions.py`` kills, and test_worker_images.py."""
    copy = VARIANTS["copy"]
    text = site.definition()
    through_images = [uploaded(), downloaded()]
    there_and_back = [*forward(site, copy), *backward(site, copy, text), *confirmed(site, copy)]
    return [*asked(), *there_and_back, *through_images, *deleted(), renamed()]


def killed_at(run: Callable[[KillAt], object]) -> Iterator[int]:
    """Run again and again, killed one effect later each time, until it comes through."""
    for number in range(100):
        try:
            run(KillAt(number))
        except Killed:
            yield number
        else:
            return
    raise AssertionError("it never ends")
