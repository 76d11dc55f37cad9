"""A guest's serial lines and its agent's channel: what a move leaves of them, and what an agent may say."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lxml import etree

from droveway.workers.hypervisors.libvirt import agent as libvirt_agent
from droveway.workers.hypervisors.libvirt import lines as libvirt_lines
from droveway.workers.hypervisors.libvirt.xml import Domain

# As libvirt tells of a running guest that Nova has made.
NOVAS = """<domain type='kvm'><name>instance-1</name><uuid>u</uuid><memory>1</memory><vcpu>1</vcpu>
<os><type arch='x86_64' machine='pc'>hvm</type></os><devices>
  <serial type='pty'>
    <source path='/dev/pts/3'/>
    <log file='/source/instances/u/console.log' append='off'/>
    <target type='isa-serial' port='0'><model name='isa-serial'/></target>
    <alias name='serial0'/>
  </serial>
  <console type='pty' tty='/dev/pts/3'>
    <source path='/dev/pts/3'/>
    <log file='/source/instances/u/console.log' append='off'/>
    <target type='serial' port='0'/>
    <alias name='serial0'/>
  </console>
  <channel type='unix'>
    <source mode='bind' path='/source/org.qemu.guest_agent.0.sock'/>
    <target type='virtio' name='org.qemu.guest_agent.0' state='connected'/>
    <alias name='channel0'/>
    <address type='virtio-serial' controller='0' bus='0' port='1'/>
  </channel>
</devices></domain>"""


def settled(text: str) -> Any:
    domain = Domain(text)
    domain.adapt_to_host(Path("/here/instances/u"))
    return etree.fromstring(domain.text()).find("devices")


def plain(element: Any) -> str:
    return re.sub(r">\s+<", "><", etree.tostring(element, encoding="unicode").strip())


def test_an_ordinary_servers_lines_stay_as_its_guest_knows_them() -> None:
    devices = settled(NOVAS)
    assert plain(devices.find("serial")) == (
        '<serial type="pty"><log file="/here/instances/u/console.log" append="off"/>'
        '<target type="isa-serial" port="0"><model name="isa-serial"/></target><alias name="serial0"/></serial>'
    )
    assert plain(devices.find("console")) == (
        '<console type="pty"><log file="/here/instances/u/console.log" append="off"/>'
        '<target type="serial" port="0"/><alias name="serial0"/></console>'
    )


def test_the_agents_channel_stays_and_its_socket_is_left_to_libvirt() -> None:
    devices = settled(NOVAS)
    assert libvirt_lines.has_agent(devices)
    assert plain(devices.find("channel")) == (
        '<channel type="unix"><target type="virtio" name="org.qemu.guest_agent.0"/><alias name="channel0"/>'
        '<address type="virtio-serial" controller="0" bus="0" port="1"/></channel>'
    )


@pytest.mark.parametrize(
    "kind", ["<serial type='unix'>", "<serial type='file'>", "<serial type='tcp'>", "<serial type='dev'>"]
)
def test_no_socket_file_or_device_of_another_host_stands_behind_a_line(kind: str) -> None:
    """S2: a source names none of the destination's."""
    text = NOVAS.replace("<serial type='pty'>", kind).replace(
        "<source path='/dev/pts/3'/>", "<source path='/etc/x' mode='bind' host='h' service='1'/><protocol type='raw'/>"
    )
    serial = settled(text).find("serial")
    assert serial.get("type") == "pty"
    assert {child.tag for child in serial} == {"log", "target", "alias"}
    assert serial.find("log").get("file") == "/here/instances/u/console.log"


def test_a_line_that_was_not_logged_is_not() -> None:
    text = re.sub(r"<log [^>]*>", "", NOVAS)
    assert settled(text).find("serial/log") is None


def test_a_guest_gets_no_line_that_it_had_not() -> None:
    text = re.sub(r"<(serial|console) .*</\1>", "", NOVAS, flags=re.DOTALL)
    devices = settled(text)
    assert devices.find("serial") is None
    assert devices.find("console") is None


@pytest.mark.parametrize(
    "channel",
    [
        "<channel type='unix'><target type='virtio' name='org.qemu.guest_agent.1'/></channel>",
        "<channel type='spicevmc'><target type='virtio' name='org.qemu.guest_agent.0'/></channel>",
        "<channel type='unix'/>",
        "",
    ],
)
def test_only_the_agents_own_channel_is_one(channel: str) -> None:
    text = re.sub(r"<channel .*</channel>", channel, NOVAS, flags=re.DOTALL)
    assert not libvirt_lines.has_agent(Domain(text).root.find("devices"))


Says = Callable[[Any], str]


@pytest.fixture(name="ask")
def fixture_ask(monkeypatch: pytest.MonkeyPatch) -> Callable[[Says, Says], None]:
    class Library:
        libvirtError = KeyError  # noqa: N815 - libvirt's name

    def ask(sync: Says, ping: Says) -> None:
        def command(_domain: object, text: str, seconds: int, flags: int) -> str:
            assert (seconds >= 1, flags) == (True, 0)
            question = json.loads(text)
            return sync(question["arguments"]["id"]) if question["execute"] == "guest-sync" else ping(None)

        monkeypatch.setattr(libvirt_agent, "_command", command)
        libvirt_agent.ping(object(), 5.0)

    monkeypatch.setattr(libvirt_agent, "library", Library)
    return ask


def synced(number: int) -> str:
    return json.dumps({"return": number})


def pinged(_: object) -> str:
    return '{"return": {}}'


def test_an_honest_agent_is_believed(ask: Callable[[Says, Says], None]) -> None:
    ask(synced, pinged)


DEEP = "[" * 100_000


@pytest.mark.parametrize(
    "lie",
    [
        "", "null", "{}", "[]", "\0", "\ud800", '{"return": null}', '{"return": []}', '{"return": {"a": 1}}',
        '{"return": {"a": null}}', '{"error": {"class": "x", "desc": "y"}}', "A" * 5000,
        '{"return": {}, "x": "' + "A" * 2000 + '"}', f'{{"x": {DEEP}', DEEP[:1000], '{"return": 1e400}',
        '{"return": "12"}', '{"return": -1}', '{"return": ' + "9" * 900 + "}",
    ],
)  # fmt: skip
@pytest.mark.parametrize("at", ["sync", "ping"])
def test_no_lie_is_taken_for_an_answer(ask: Callable[[Says, Says], None], lie: str, at: str) -> None:
    with pytest.raises(libvirt_agent.Mute) as caught:
        ask((lambda _: lie) if at == "sync" else synced, (lambda _: lie) if at == "ping" else pinged)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 200


class LibvirtError(KeyError):
    """What libvirt raises: a code and a text."""

    def get_error_code(self) -> int:
        return int(self.args[0])

    def get_error_message(self) -> str:
        return str(self.args[1])


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (1, "its answer to guest-ping is not valid: \\x1b[2J no (libvirt error 1)"),
        (86, "\\x1b[2J no (libvirt error 86)"),
    ],
)
def test_what_libvirt_could_not_read_is_told_as_an_answer(
    ask: Callable[[Says, Says], None], code: int, told: str
) -> None:
    """Its word for an agent that said nothing stands alone."""

    def fail(_: object) -> str:
        raise LibvirtError(code, "\x1b[2J no")

    with pytest.raises(libvirt_agent.Mute) as caught:
        ask(synced, fail)
    assert str(caught.value) == told


def test_each_question_has_a_number_of_its_own(ask: Callable[[Says, Says], None]) -> None:
    seen: list[int] = []

    def note(number: int) -> str:
        seen.append(number)
        return synced(number)

    for _ in range(20):
        ask(note, pinged)
    assert len(set(seen)) == 20
    assert max(seen) > 2**50
    with pytest.raises(libvirt_agent.Mute, match="another question"):
        ask(lambda _: synced(seen[0]), pinged)
