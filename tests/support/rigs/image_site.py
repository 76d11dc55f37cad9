"""Two hosts, a server on the first of them, and an image that waits for its root disk."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.labs.disked import Disked, qemu
from support.rigs.worker_rig import MIB, MOVE, SERVER, Cloud, cloud
from support.rigs.worker_stages import IMAGE, Stage

from droveway.clients.image import CHUNK
from droveway.errors import StepError
from droveway.workers.actions import images
from droveway.workers.transfer import copying

PART = f"{SERVER}.part-{MOVE}"


@contextlib.contextmanager
def plain(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    """The root disk rests on nothing. Nobody waits for a service that is away."""
    monkeypatch.setattr(images, "POLL", 0.01)
    monkeypatch.setattr(images, "PATIENCE", 0.0)
    monkeypatch.setattr(copying, "SYNC_BYTES", CHUNK)
    with cloud(folder) as site:
        site.make_server(root_mib=5, swap=False)
        queue(site)
        yield site


@contextlib.contextmanager
def resting(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    """The root disk is an overlay, and the image waits for a qcow2."""
    monkeypatch.setattr(images, "POLL", 0.01)
    with cloud(folder) as site:
        for name, host in site.hosts.items():
            hypervisor = Disked(name, host.hypervisor.root, guests_log=site.log, volumes=site.volumes)
            object.__setattr__(host, "hypervisor", hypervisor)
        directories = site.hosts["alpha"].directories
        directories.create("_base")
        directories.create(SERVER)
        base = directories.path("_base", "ba5e")
        base.write_bytes(hashlib.shake_256(b"base").digest(MIB))
        qemu("create", "-q", "-f", "qcow2", "-b", base, "-F", "raw", disk(site))
        qemu("bench", "-w", "-c", "3", "-s", "65536", "--pattern", "7", "-f", "qcow2", disk(site))
        directories.write_formats(SERVER, SERVER, {"disk": "qcow2"})
        queue(site, "qcow2")
        yield site


def queue(site: Cloud, disk_format: str = "raw") -> None:
    site.references.images.create(
        IMAGE, name="web-shelved", min_disk_gb=1, properties={"droveway_move": MOVE}, disk_format=disk_format
    )


def run(site: Cloud, stage: Stage, **options: Any) -> dict[str, Any]:
    return site.run(stage.host, stage.action, stage.details, **options)


def disk(site: Cloud, host: str = "alpha", folder: str = SERVER) -> Path:
    return site.hosts[host].directories.path(folder, "disk")


def content(site: Cloud) -> bytes:
    return b"".join(site.references.images.download(IMAGE))


def digest(data: bytes) -> str:
    return hashlib.sha512(data).hexdigest()


def code_of(call: Callable[[], Any], why: str, kind: type[StepError] = StepError) -> str:
    with pytest.raises(StepError, match=why) as caught:
        call()
    assert type(caught.value) is kind
    assert caught.value.host
    return caught.value.error_code
