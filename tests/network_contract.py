"""What a move relies on in Neutron: one suite for the embedded service and for a real one.

A test module subclasses `NetworkContract` and has a fixture ``world``. Where the two differ, the embedded one is wrong.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

import pytest
from keystoneauth1 import exceptions

from droveway.clients.embedded.guaranteed import provider_of
from droveway.clients.network import BINDING_EXTENDED, RESOURCE_REQUEST, Network, Port, PortRecord
from droveway.clients.port_resources import PortResources
from droveway.clients.rest import ATTEMPTS
from droveway.errors import DestinationFault, StepError

HERE: Final = "host1"
THERE: Final = "host2"
ELSEWHERE: Final = "elsewhere"
"""A host whose bridge leads to another physical network."""
SILENT: Final = "silent"
"""A host whose agent does not report what its bridge can give."""

BRIDGE: Final = "br-a"
REACHED: Final = "physnet1"
UNREACHED: Final = "physnet2"

EGRESS: Final = "NET_BW_EGR_KILOBIT_PER_SEC"
INGRESS: Final = "NET_BW_IGR_KILOBIT_PER_SEC"
PACKETS: Final = "NET_PACKET_RATE_KILOPACKET_PER_SEC"

OWNER: Final = "compute:nova"

Send = Callable[[], Any]


class Tampered:
    """A service whose next writes go wrong as its test wants."""

    def __init__(self, service: Any) -> None:
        self._service = service
        self.queue: list[Callable[[Send], Any]] = []

    def request(self, url: str, method: str, **options: Any) -> Any:
        """Send the request, or hand it to whoever is next to tamper with a write."""
        if method != "GET" and self.queue:
            return self.queue.pop(0)(lambda: self._service.request(url, method, **options))
        return self._service.request(url, method, **options)


@dataclass
class World:
    """A network service that knows the four hosts, and a network over the physical one that two of them reach."""

    service: Tampered
    network_id: str
    server: str = field(default_factory=lambda: str(uuid.uuid4()))
    asked: list[str] = field(default_factory=list)
    """The methods of what was asked since it was emptied."""
    network: Network = field(init=False)

    def __post_init__(self) -> None:
        self.network = Network(self.service, on_request=lambda method, _path: self.asked.append(method))

    def make(self, host: str, *, policy: str | None = None) -> str:
        """Make a port of the server; bound to a host, or to none."""
        mac = "fa:16:3e:" + ":".join(uuid.uuid4().hex[at : at + 2] for at in (0, 2, 4))
        return self.network.create_port(
            self.server, mac=mac, network_id=self.network_id, host=host, device_owner=OWNER, policy=policy
        )

    def only(self) -> PortRecord:
        """Return the server's only port with its bindings."""
        (found,) = self.network.ports(self.server)
        return found

    def listed(self) -> Port:
        """Return the server's only port without its bindings."""
        (found,) = self.network.listed_ports(self.server)
        return found

    def resources(self) -> PortResources:
        """Return what the server's only port asks for."""
        found = self.listed().resources
        assert found is not None
        return found

    def profile(self, host: str) -> dict[str, Any]:
        """Return the profile that names the host's bridge and agent for what the port asks for."""
        bandwidth, packets = self.resources().groups
        return {"allocation": {bandwidth.id: provider_of(host, BRIDGE), packets.id: provider_of(host)}}


def lose_answer(send: Send) -> Any:
    """Carry the request out, and lose its answer."""
    send()
    raise exceptions.ConnectFailure("the connection broke")


def never_arrive(_send: Send) -> Any:
    """Lose the request."""
    raise exceptions.ConnectFailure("the connection broke")


@dataclass
class Broken:
    """The answer of a service that failed."""

    text: str
    status_code: int = 500
    headers: Mapping[str, str] = field(default_factory=dict)

    def json(self) -> Any:
        """Read the body."""
        return json.loads(self.text)


def fail_after(send: Send) -> Any:
    """Carry the request out, and answer that the service failed."""
    send()
    return Broken('{"NeutronError": {"type": "HTTPInternalServerError", "message": "it failed", "detail": ""}}')


def fail_instead(_send: Send) -> Any:
    """Lose the request in the service, which answers with no JSON."""
    return Broken("<html>it failed</html>")


class NetworkContract:
    """The cases."""

    @pytest.fixture
    def port(self, world: World) -> Iterator[str]:
        """A port that is bound to the first host."""
        found = world.make(HERE)
        yield found
        world.network.delete_port(found)

    @pytest.fixture
    def gold(self, world: World) -> Iterator[str]:
        """An unbound port whose policy guarantees bandwidth and a packet rate."""
        policy = world.network.create_policy(f"gold-{uuid.uuid4()}")
        world.network.guarantee(policy, egress_kbps=1000, ingress_kbps=2000, kpps=3)
        found = world.make("", policy=policy)
        yield found
        world.network.delete_port(found)

    def test_it_has_the_extensions_that_moves_rely_on(self, world: World, port: str) -> None:
        assert world.network.has_extension(BINDING_EXTENDED)
        assert world.network.has_extension(RESOURCE_REQUEST)
        assert not world.network.has_extension("nothing-of-the-kind")
        assert world.listed().tells_request

    # Bindings.

    def test_a_port_is_bound_where_it_was_made(self, world: World, port: str) -> None:
        found = world.only()
        assert (found.id, found.host, found.server, found.device_owner) == (port, HERE, world.server, OWNER)
        assert (found.bindings, found.resources, found.vnic_type) == ({HERE: "ACTIVE"}, None, "normal")
        assert world.network.ports(str(uuid.uuid4())) == []

    def test_a_second_binding_is_inactive_and_made_once(self, world: World, port: str) -> None:
        for _ in range(2):
            world.network.ensure_binding(port, THERE, {"key": "value"})
        assert world.only().bindings == {HERE: "ACTIVE", THERE: "INACTIVE"}
        assert (world.only().host, world.only().profile) == (HERE, {})

    def test_activating_flips_both_bindings(self, world: World, port: str) -> None:
        world.network.ensure_binding(port, THERE, {"key": "value"})
        for _ in range(2):
            world.network.activate(port, THERE, device_owner="compute:az2")
        found = world.only()
        assert found.bindings == {HERE: "INACTIVE", THERE: "ACTIVE"}
        assert (found.host, found.device_owner, found.profile) == (THERE, "compute:az2", {"key": "value"})

    def test_a_move_of_a_port_there_and_back_leaves_one_binding(self, world: World, port: str) -> None:
        before = world.only()
        for to, away in ((THERE, HERE), (HERE, THERE)):
            world.network.ensure_binding(port, to, {})
            world.network.activate(port, to, device_owner=OWNER)
            for _ in range(2):
                world.network.delete_binding(port, away)
            assert world.only().bindings == {to: "ACTIVE"}
        assert world.only() == before

    def test_without_its_active_binding_a_port_is_unbound(self, world: World, port: str) -> None:
        world.network.ensure_binding(port, THERE, {})
        world.network.delete_binding(port, HERE)
        found = world.only()
        assert (found.host, found.bindings) == ("", {THERE: "INACTIVE"})

    def test_a_host_that_cannot_bind_is_the_destinations_fault(self, world: World, port: str) -> None:
        for host in ("nosuchhost", ELSEWHERE):
            with pytest.raises(DestinationFault) as caught:
                world.network.ensure_binding(port, host, {})
            assert (caught.value.error_code, caught.value.host) == ("binding-refused", host)
            assert not str(caught.value).endswith(": "), "Neutron's own words are left out"
            assert world.only().bindings == {HERE: "ACTIVE"}

    def test_a_binding_that_is_not_there_cannot_be_activated(self, world: World, port: str) -> None:
        with pytest.raises(StepError) as caught:
            world.network.activate(port, THERE, device_owner=OWNER)
        assert caught.value.error_code == "binding-missing"
        assert world.only().host == HERE

    def test_a_port_that_is_gone(self, world: World, port: str) -> None:
        for _ in range(2):
            world.network.delete_port(port)
        world.network.delete_binding(port, HERE)
        assert world.network.ports(world.server) == []
        with pytest.raises(StepError) as caught:
            world.network.ensure_binding(port, THERE, {})
        assert caught.value.error_code == "network-failed"

    def test_a_port_is_brought_to_a_host_with_one_look_at_its_bindings(self, world: World, port: str) -> None:
        """The binding is made, or made active; the owner is written only where it was listed as another."""
        for owned_by, asked in ((OWNER, ["GET", "POST", "PUT", "GET", "PUT"]), ("compute:az2", ["GET"])):
            world.asked.clear()
            world.network.bring(port, THERE, {"key": "value"}, device_owner="compute:az2", owned_by=owned_by)
            assert world.asked == asked
        found = world.only()
        assert found.bindings == {HERE: "INACTIVE", THERE: "ACTIVE"}
        assert (found.host, found.device_owner, found.profile) == (THERE, "compute:az2", {"key": "value"})
        world.asked.clear()
        world.network.bring(port, HERE, {}, device_owner=OWNER, owned_by=OWNER)
        assert world.asked == ["GET", "PUT"]
        assert world.only().bindings == {HERE: "ACTIVE", THERE: "INACTIVE"}

    @pytest.mark.parametrize("tamper", [lose_answer, never_arrive, fail_after, fail_instead])
    def test_a_port_is_brought_to_a_host_though_answers_are_lost(
        self, world: World, port: str, tamper: Callable[[Send], Any]
    ) -> None:
        world.service.queue += [tamper, tamper, tamper]
        world.network.bring(port, THERE, {}, device_owner="compute:az2", owned_by=OWNER)
        assert world.service.queue == []
        assert (world.only().bindings, world.only().device_owner) == (
            {HERE: "INACTIVE", THERE: "ACTIVE"},
            "compute:az2",
        )

    @pytest.mark.parametrize("tamper", [lose_answer, never_arrive])
    def test_a_port_moves_though_answers_are_lost(self, world: World, port: str, tamper: Callable[[Send], Any]) -> None:
        world.service.queue.append(tamper)
        world.network.ensure_binding(port, THERE, {})
        world.service.queue.append(tamper)
        world.network.activate(port, THERE, device_owner="compute:az2")
        world.service.queue.append(tamper)
        world.network.delete_binding(port, HERE)
        found = world.only()
        assert (found.bindings, found.device_owner) == ({THERE: "ACTIVE"}, "compute:az2")
        assert world.service.queue == []

    def test_an_edit_in_between_is_not_overwritten(self, world: World, port: str) -> None:
        def edited_meanwhile(send: Send) -> Any:
            world.network.activate(port, HERE, device_owner="compute:az3")
            seen.append(world.only().device_owner)
            answer = send()
            seen.append(answer.status_code)
            return answer

        seen: list[Any] = []
        world.service.queue.append(edited_meanwhile)
        world.network.activate(port, HERE, device_owner="compute:az2")
        assert seen == ["compute:az3", 412]
        assert world.only().device_owner == "compute:az2"

    def test_a_port_is_unbound_and_bound_again(self, world: World, port: str) -> None:
        for _ in range(2):
            world.network.unbind(port, profile={"key": "value"})
        found = world.only()
        assert (found.host, found.bindings, found.profile) == ("", {}, {"key": "value"})
        for _ in range(2):
            world.network.bind(port, THERE, profile={}, device_owner="compute:az2")
        found = world.only()
        assert (found.host, found.bindings, found.profile, found.device_owner) == (
            THERE, {THERE: "ACTIVE"}, {}, "compute:az2",
        )  # fmt: skip

    def test_a_port_that_is_bound_elsewhere_by_its_host_alone_keeps_what_is_inactive(
        self, world: World, port: str
    ) -> None:
        """So an operator's ``openstack port set --host`` does; the profile stays too."""
        world.network.ensure_binding(port, THERE, {})
        world.network.set_profile(port, {"key": "value"})
        answer = world.service.request(f"/ports/{port}", "PUT", json={"port": {"binding:host_id": ELSEWHERE}})
        found = world.only()
        assert (answer.status_code, found.bindings, found.profile) == (
            HTTPStatus.OK, {THERE: "INACTIVE", ELSEWHERE: "ACTIVE"}, {"key": "value"},
        )  # fmt: skip

    def test_a_host_that_cannot_take_an_unbound_port_is_the_destinations_fault(self, world: World, port: str) -> None:
        world.network.unbind(port, profile={})
        with pytest.raises(DestinationFault) as caught:
            world.network.bind(port, ELSEWHERE, profile={}, device_owner=OWNER)
        assert (caught.value.error_code, caught.value.host) == ("binding-refused", ELSEWHERE)

    def test_a_binding_that_failed_and_names_nobody_stays_as_it_is(self, world: World, port: str) -> None:
        """It failed before the move, whose undo has to end all the same."""
        world.network.unbind(port, profile={})
        with pytest.raises(DestinationFault):
            world.network.bind(port, ELSEWHERE, profile={}, device_owner=OWNER)
        world.asked.clear()
        world.network.ensure_binding(port, ELSEWHERE, {})
        assert world.asked == ["POST", "GET"]
        assert world.only().bindings == {ELSEWHERE: "ACTIVE"}

    def test_a_service_that_goes_on_failing_is_no_fault_of_the_host(self, world: World, port: str) -> None:
        """Only the type of Neutron's error says that the host refused: it is no other host's turn."""
        world.service.queue += [fail_instead] * ATTEMPTS
        with pytest.raises(StepError) as caught:
            world.network.bring(port, THERE, {}, device_owner=OWNER, owned_by=OWNER)
        assert (type(caught.value), caught.value.error_code) == (StepError, "network-unavailable")
        world.service.queue.clear()
        world.network.bring(port, THERE, {}, device_owner=OWNER, owned_by=OWNER)
        assert world.only().bindings == {HERE: "INACTIVE", THERE: "ACTIVE"}

    # What is guaranteed.

    def test_a_port_asks_for_what_its_policy_guarantees(self, world: World, gold: str) -> None:
        bandwidth, packets = world.resources().groups
        assert (bandwidth.resources, set(bandwidth.required)) == (
            {EGRESS: 1000, INGRESS: 2000},
            {"CUSTOM_PHYSNET_PHYSNET1", "CUSTOM_VNIC_TYPE_NORMAL"},
        )
        assert (packets.resources, packets.required) == ({PACKETS: 3}, ("CUSTOM_VNIC_TYPE_NORMAL",))
        assert set(world.resources().same_subtree) == {bandwidth.id, packets.id}
        assert (world.listed().id, world.resources().legacy) == (gold, False)

    def test_a_port_is_bound_where_the_named_providers_are(self, world: World, gold: str) -> None:
        for _ in range(2):
            world.network.bind(gold, HERE, profile=world.profile(HERE), device_owner=OWNER)
        assert (world.only().host, world.only().profile) == (HERE, world.profile(HERE))

    @pytest.mark.parametrize("host", [ELSEWHERE, SILENT, THERE])
    def test_no_binding_is_made_where_they_are_not(self, world: World, gold: str, host: str) -> None:
        """The network is not reached there, its agent reports no bandwidth, or it is another host's."""
        world.network.bind(gold, HERE, profile=world.profile(HERE), device_owner=OWNER)
        profile = world.profile(HERE if host == THERE else host)
        with pytest.raises(DestinationFault) as caught:
            world.network.ensure_binding(gold, host, profile)
        assert (caught.value.error_code, caught.value.host) == ("binding-refused", host)
        assert world.only().bindings == {HERE: "ACTIVE"}

    def test_no_unbound_port_is_bound_with_another_hosts_providers(self, world: World, gold: str) -> None:
        with pytest.raises(DestinationFault):
            world.network.bind(gold, THERE, profile=world.profile(HERE), device_owner=OWNER)

    def test_a_binding_that_names_others_is_given_the_right_ones(self, world: World, gold: str) -> None:
        """A repeat with another claim writes what that names; the same again writes nothing."""
        right, wrong = world.profile(THERE), world.profile(HERE)
        bandwidth, _ = world.resources().groups
        world.network.bind(gold, HERE, profile=wrong, device_owner=OWNER)
        world.network.ensure_binding(gold, THERE, {"allocation": {bandwidth.id: provider_of(THERE, BRIDGE)}})
        world.asked.clear()
        for _ in range(2):
            world.network.ensure_binding(gold, THERE, right)
        assert world.asked == ["POST", "GET", "PUT", "POST", "GET"]
        world.network.activate(gold, THERE, device_owner=OWNER)
        assert world.only().profile == right

    def test_an_active_binding_does_not_take_another_hosts_providers(self, world: World, gold: str) -> None:
        """An inactive one does: Neutron looks at them only when it makes it, and when it is active."""
        here, there = world.profile(HERE), world.profile(THERE)
        world.network.bind(gold, HERE, profile=here, device_owner=OWNER)
        world.network.ensure_binding(gold, THERE, there)
        world.network.ensure_binding(gold, THERE, here)
        for write in (
            world.network.ensure_binding,
            lambda port, _host, profile: world.network.set_profile(port, profile),
        ):
            with pytest.raises(DestinationFault) as caught:
                write(gold, HERE, there)
            assert (caught.value.error_code, caught.value.host) == ("binding-refused", HERE)
        world.network.set_profile(gold, here)
        assert (world.only().host, world.only().profile) == (HERE, here)

    def test_the_active_binding_of_a_port_names_others(self, world: World, gold: str) -> None:
        world.network.bind(gold, HERE, profile=world.profile(HERE), device_owner=OWNER)
        for _ in range(2):
            world.network.set_profile(gold, {})
        assert (world.only().host, world.only().profile) == (HERE, {})

    def test_a_bound_port_goes_there_and_back_with_who_gives_what_it_asks_for(self, world: World, gold: str) -> None:
        """The source's binding keeps its own providers until it is deleted."""
        here, there = world.profile(HERE), world.profile(THERE)
        world.network.bind(gold, HERE, profile=here, device_owner=OWNER)
        world.network.ensure_binding(gold, THERE, there)
        assert world.only().profile == here
        world.network.activate(gold, THERE, device_owner=OWNER)
        assert world.only().profile == there
        world.network.activate(gold, HERE, device_owner=OWNER)
        assert world.only().profile == here
        world.network.delete_binding(gold, THERE)
        assert world.only().bindings == {HERE: "ACTIVE"}
