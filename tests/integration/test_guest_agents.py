"""Health by the guest's own agent, behind a real libvirt: the real qemu-guest-agent, none, and some that lie."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypervisor_contract import open_fence
from support.labs.agent_guest import Guest

from droveway.engines.keeper.health import Standard, judge
from droveway.errors import StepError
from droveway.lab.libvirt_hosts import LibvirtHost
from droveway.persistence.journal.policies import Health
from droveway.wire import codec, commands
from droveway.workers.actions import checks
from droveway.workers.hypervisors.libvirt.hypervisor import Libvirt

BOOTS_WITHIN = 600.0
ANSWERS_WITHIN = 180.0
UNANSWERED = "Guest agent is not responding: Guest agent not available for now (libvirt error 86)"
REFUSED = "internal error: unable to execute QEMU agent command 'guest-ping': \\x1b[2J all is well (libvirt error 1)"
LIARS = {
    "no-process": "Guest agent is not responding: QEMU guest agent is not connected (libvirt error 86)",
    "deaf": UNANSWERED,
    "wrong-number": "it answers another question than it was asked",
    "deep": "its answer to guest-sync is not valid: "
    "internal error: failed to convert virJSONValue to yajl data (libvirt error 1)",
    "wordy": "it answers guest-ping with 100019 characters",
    "refusing": f"its answer to guest-ping is not valid: {REFUSED}",
    "endless": "Guest agent is not responding: QEMU guest agent is not available due to an error (libvirt error 86)",
    # libvirt passes over lines that answer no question of its own, and tells nobody that there were any.
    "endless-lines": UNANSWERED,
}
"""What an operator reads of each behind the words `does not answer`."""

Start = Callable[..., Guest]


@pytest.fixture(name="host")
def fixture_host(libvirt_hosts: list[LibvirtHost]) -> Iterator[Libvirt]:
    daemon = libvirt_hosts[0]
    made = Libvirt(daemon.name, daemon.root, uri=daemon.uri)
    yield made
    made.close()


@pytest.fixture(name="start")
def fixture_start(libvirt_folder: Path, host: Libvirt) -> Iterator[Start]:
    made: list[Guest] = []
    folder = libvirt_folder / "agents"
    folder.mkdir(exist_ok=True)
    folder.chmod(0o777)

    def start(kind: str, **options: Any) -> Guest:
        guest = Guest(folder, kind, **options)
        made.append(guest)
        host._connection.get().defineXML(guest.definition)
        host.start(guest.server, open_fence)
        deadline = time.monotonic() + BOOTS_WITHIN
        while not guest.is_up():
            assert time.monotonic() < deadline, guest.log.read_text(errors="replace")[-3000:]
            time.sleep(0.1)
        return guest

    yield start
    for guest in made:
        host.stop(guest.server, grace=0, fence=open_fence)
        host.undefine(guest.server)


def health(host: Libvirt, server: str, seconds: float) -> dict[str, Any]:
    """What a worker answers."""
    context: Any = SimpleNamespace(
        hypervisor=host, server=server, host=SimpleNamespace(name=host.host), effect=lambda _: None
    )
    return checks.check_guest(context, commands.CheckGuest(probe_seconds=seconds))


def verdict(host: Libvirt, server: str, seconds: float) -> tuple[Health, str]:
    result = commands.Result(key="k", epoch=1, value=health(host, server, seconds))
    decoded = codec.decode_answer(codec.encode(result), "k")
    return judge(decoded, Standard(healthy_after=0.0, probe_timeout=seconds), meant_to_run=True)


def test_a_real_agent_answers_and_a_reboot_from_within_is_no_break(host: Libvirt, start: Start) -> None:
    guest = start("real")

    def answers() -> bool:
        return bool(health(host, guest.server, 5.0)["answers"])

    deadline = time.monotonic() + ANSWERS_WITHIN
    while not answers():
        assert time.monotonic() < deadline, guest.log.read_text(errors="replace")[-3000:]
        time.sleep(0.5)
    assert verdict(host, guest.server, 20.0)[0] is Health.PASSED
    starts, ran = health(host, guest.server, 0.0)["starts"], host.running_for(guest.server)
    assert ran is not None
    host._connection.get().lookupByUUIDString(guest.server).reset()
    later = health(host, guest.server, 0.0)
    assert (later["starts"], later["running"]) == (starts, True)
    assert later["running_for"] >= ran


@pytest.mark.parametrize(("kind", "said"), LIARS.items())
def test_an_agent_that_is_mute_or_lies_makes_no_guest_healthy(
    host: Libvirt, start: Start, kind: str, said: str
) -> None:
    guest = start(kind)
    told = f"the guest agent of server {guest.server} on {host.host} does not answer: {said}"
    deadline = time.monotonic() + ANSWERS_WITHIN
    while True:
        before = time.monotonic()
        with pytest.raises(StepError, match="does not answer") as caught:
            host.ping_agent(guest.server, seconds=12.0)
        found, why = verdict(host, guest.server, 12.0)
        # Asked twice, and however much the agent says.
        assert time.monotonic() - before < 60.0
        assert found is Health.FAILING
        assert why.isprintable()
        assert len(why) < 2100
        # An emulated guest on a busy machine may be too slow to say anything; then both say the same of it.
        if (caught.value.message, why) == (told, f"the guest runs but fails its probe: {told}"):
            break
        assert time.monotonic() < deadline, why
    # What the hypervisor does for others goes on.
    assert host.guest(guest.server) is not None


def test_a_guest_without_a_channel_need_only_run(host: Libvirt, start: Start) -> None:
    server = start("no-process", channel=False).server
    assert health(host, server, 5.0)["answers"] is None
    found, why = verdict(host, server, 5.0)
    assert found is Health.PASSED
    assert "has no agent to ask" in why


def test_no_agent_is_asked_where_none_shall_be(host: Libvirt, start: Start) -> None:
    server = start("deaf").server
    assert health(host, server, 0.0)["answers"] is None
    assert verdict(host, server, 0.0)[0] is Health.PASSED
