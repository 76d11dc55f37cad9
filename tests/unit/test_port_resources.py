"""What ports ask of Placement: read from Neutron, asked of Placement, and named in bindings."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import pytest
from support.rigs.scheduling import request
from support.rows.audit_books import SERVER, books

from droveway.audit.checks import guaranteed
from droveway.audit.records import PortView
from droveway.clients import sessions
from droveway.clients.configured import Services
from droveway.clients.network import Network
from droveway.clients.port_resources import PortResources, asked_by
from droveway.conf import settings
from droveway.errors import StepError
from droveway.flows.steps.attached import AttachedPort
from droveway.flows.steps.port_profiles import claimed, recorded
from droveway.scheduler.requests import query

EGRESS, PACKETS = "NET_BW_EGR_KILOBIT_PER_SEC", "NET_PACKET_RATE_KILOPACKET_PER_SEC"
GROUPS: dict[str, Any] = {
    "request_groups": [
        {"id": "bw", "resources": {EGRESS: 1000}, "required": ["CUSTOM_PHYSNET_A", "CUSTOM_VNIC_TYPE_NORMAL"]},
        {"id": "pps", "resources": {PACKETS: 5}, "required": ["CUSTOM_VNIC_TYPE_NORMAL"]},
    ],
    "same_subtree": ["bw", "pps"],
}
LEGACY: dict[str, Any] = {"resources": {EGRESS: 7}, "required": ["CUSTOM_PHYSNET_A"]}


def asked(told: dict[str, Any]) -> PortResources:
    found = asked_by("p1", told)
    assert found is not None
    return found


@pytest.mark.parametrize("told", [None, {}, {"request_groups": []}])
def test_a_port_that_asks_for_nothing(told: dict[str, Any] | None) -> None:
    assert asked_by("p1", told) is None


def test_each_group_is_asked_for_by_its_id_and_a_legacy_port_by_its_own() -> None:
    pairs = query(request(ports=[asked(GROUPS), asked(LEGACY)]))
    assert [pair for pair in pairs if pair[0].endswith(("bw", "pps", "p1", "subtree", "policy"))] == [
        ("resourcesbw", f"{EGRESS}:1000"),
        ("requiredbw", "CUSTOM_PHYSNET_A,CUSTOM_VNIC_TYPE_NORMAL"),
        ("resourcespps", f"{PACKETS}:5"),
        ("requiredpps", "CUSTOM_VNIC_TYPE_NORMAL"),
        ("same_subtree", "bw,pps"),
        ("resourcesp1", f"{EGRESS}:7"),
        ("requiredp1", "CUSTOM_PHYSNET_A"),
        ("group_policy", "none"),
    ]


def test_one_group_has_no_group_policy() -> None:
    """Placement refuses it where there is one group only."""
    assert "group_policy" not in dict(query(request(ports=[asked(LEGACY)])))
    assert "same_subtree" not in dict(query(request(ports=[asked(LEGACY)])))


def attached(before: PortResources | None, now: PortResources | None, profile: dict[str, Any]) -> AttachedPort:
    return AttachedPort(port="p1", mac="m", profile=profile, device_owner="o", resources=before, asks=now)


@pytest.mark.parametrize(
    ("told", "mappings", "named"),
    [
        (GROUPS, {"": ["host"], "bw": ["bridge"], "pps": ["agent"]}, {"bw": "bridge", "pps": "agent"}),
        (LEGACY, {"": ["host"], "p1": ["bridge"]}, "bridge"),
        (GROUPS, {"": ["host"], "bw": ["bridge"]}, None),
        (GROUPS, {}, None),
    ],
)
def test_a_profile_names_who_was_claimed_and_keeps_all_else(
    told: dict[str, Any], mappings: dict[str, list[str]], named: Any
) -> None:
    """What a host before named goes, even where nobody was claimed for the port."""
    port = attached(asked(told), asked(told), {"key": 1, "allocation": "old"})
    wanted = {"key": 1} if named is None else {"key": 1, "allocation": named}
    assert claimed(port, {"allocations": {}, "mappings": mappings}) == wanted


def test_a_port_that_asks_for_nothing_keeps_its_profile() -> None:
    port = attached(None, None, {"allocation": "odd"})
    assert claimed(port, {"mappings": {"p1": ["x"]}}) == {"allocation": "odd"}


LARGER = {"request_groups": [{"id": "bw2", "resources": {EGRESS: 2000}, "required": []}]}


@pytest.mark.parametrize(
    ("before", "now", "was", "becomes"),
    [
        (GROUPS, GROUPS, {"pps": "agent"}, {"pps": "agent"}),
        (GROUPS, LARGER, {"bw": "bridge", "pps": "agent"}, {"bw2": "bridge"}),
        (LARGER, GROUPS, {"bw2": "bridge"}, {"bw": "bridge"}),
        (GROUPS, LEGACY, {"bw": "bridge", "pps": "agent"}, "bridge"),
        (LEGACY, GROUPS, "bridge", {"bw": "bridge"}),
        (GROUPS, {}, {"bw": "bridge", "pps": "agent"}, None),
        (GROUPS, LARGER, {"pps": "agent"}, None),
    ],
)
def test_a_changed_policy_renames_groups_and_keeps_their_providers(
    before: dict[str, Any], now: dict[str, Any], was: Any, becomes: Any
) -> None:
    """A kind of resource that was not asked for before has no provider, and is not named."""
    port = attached(asked_by("p1", before), asked_by("p1", now), {"key": 1, "allocation": was})
    wanted = {"key": 1} if becomes is None else {"key": 1, "allocation": becomes}
    assert recorded(port) == wanted
    mappings = {"p1": [was]} if isinstance(was, str) else {group: [giver] for group, giver in was.items()}
    if len(was) == len(asked(before).groups) or isinstance(was, str):
        assert claimed(port, {"mappings": mappings}) == wanted


@pytest.mark.parametrize(
    ("told", "allocation", "held"),
    [
        (GROUPS, {"bw": "bridge", "pps": "agent"}, {"bridge": {EGRESS: 1000}, "agent": {PACKETS: 5}}),
        (GROUPS, {"bw": "one", "pps": "one"}, {"one": {EGRESS: 1000, PACKETS: 5}}),
        (GROUPS, {"pps": "agent"}, {"agent": {PACKETS: 5}}),
        (GROUPS, None, {}),
        (LEGACY, "bridge", {"bridge": {EGRESS: 7}}),
    ],
)
def test_what_a_port_holds_follows_from_whom_it_names(told: dict[str, Any], allocation: Any, held: Any) -> None:
    assert asked(told).held(allocation) == held


def test_a_single_provider_is_that_of_the_bandwidth() -> None:
    """Neutron named one before there were groups, and may have been upgraded since without rewriting it."""
    assert asked(GROUPS).held("bridge") == {"bridge": {EGRESS: 1000}}


class Neutron:
    """Answers with one port, or refuses its bindings."""

    def __init__(self, *, lacking: str = "", binding: int = 404, extension: int = 200) -> None:
        self._binding = binding
        self._port = {"id": "p", "mac_address": "m", "device_owner": "", "device_id": "s", "binding:profile": {}}
        self._port["resource_request"] = None
        self._port.pop(lacking, None)
        self._statuses = {"port-resource-request": extension}

    def request(self, url: str, method: str, **_options: Any) -> Any:
        last = url.rpartition("/")[2]
        if method == "POST":
            return types.SimpleNamespace(status_code=self._binding, text="", json=lambda: {"message": "no"})
        assert method == "GET"
        binding = {"host": "h", "status": "ACTIVE", "profile": {}, "vif_type": "ovs"}
        body = {"bindings": [binding]} if last == "bindings" else {"ports": [self._port]}
        return types.SimpleNamespace(status_code=self._statuses.get(last, 200), text="", json=lambda: body)


@pytest.mark.parametrize(
    ("neutron", "role"),
    [
        (Neutron(lacking="resource_request"), "admin"),
        (Neutron(lacking="binding:profile"), "service"),
        (Neutron(binding=403), "service"),
    ],
)
def test_a_role_that_is_missing_is_named_with_its_user(neutron: Neutron, role: str) -> None:
    """Neutron leaves the key out, and answers 200: nobody takes that for a port that asks for nothing."""
    network = Network(neutron, user="carol of [neutron]")
    with pytest.raises(StepError, match=f"carol of .neutron. lacks the role {role}"):
        network.require_roles()


def test_a_role_that_is_missing_is_named_with_its_group_where_no_user_is_configured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "droveway.conf"
    path.write_text("[neutron]\nauth_type = none\nendpoint_override = http://127.0.0.1:1\n")
    monkeypatch.setattr(sessions, "Neutron", lambda _conf: Neutron(lacking="resource_request"))
    network = Services(settings.load_deployment(path)).network
    with pytest.raises(StepError, match=r"since the user of \[neutron\] lacks the role admin"):
        network.require_roles()


def test_an_old_neutron_knows_nothing_of_what_ports_ask_for() -> None:
    network = Network(Neutron(lacking="resource_request", extension=404))
    assert [(port.resources, port.tells_request) for port in network.ports("s")] == [(None, False)]


def told(profile: dict[str, Any], held: dict[str, dict[str, int]], *, asks: bool = True) -> list[tuple[str, str]]:
    """What the audit says of a server at rest on its host, by kind and subject."""
    port = PortView(
        id="p1",
        server=SERVER,
        bindings={"source": "ACTIVE"},
        profile=profile,
        resources=asked(GROUPS) if asks else None,
    )
    snapshot = books(
        moves=(),
        flows=(),
        begun=frozenset(),
        migrations=(),
        ports=(port,),
        providers={"node-source": None, "agent": "node-source", "bridge": "agent", "other": "agent"},
        allocations={SERVER: {"node-source": {"VCPU": 1}, **held}},
    )
    return [(str(finding.kind), finding.detail) for finding in guaranteed.check(snapshot)]


NAMED = {"allocation": {"bw": "bridge", "pps": "agent"}}
HELD = {"bridge": {EGRESS: 1000}, "agent": {PACKETS: 5}}


def test_the_audit_is_silent_where_server_and_binding_agree() -> None:
    assert told(NAMED, HELD) == []
    assert told({}, {}, asks=False) == []


@pytest.mark.parametrize(
    ("profile", "held", "kind", "words"),
    [
        ({}, HELD, "binding", "names nobody who gives it"),
        ({"allocation": {"bw": "bridge"}}, HELD, "binding", f"asks for {PACKETS} 5, and its binding names nobody"),
        ({"allocation": {"bw": "other", "pps": "agent"}}, HELD, "binding", "names the provider other, of which"),
        ({"allocation": "bridge"}, HELD, "binding", "names the provider bridge alone, as before Neutron had groups"),
        (NAMED, {**HELD, "bridge": {EGRESS: 2000}}, "allocation", f"holds {EGRESS} 2000 of the provider bridge"),
        (NAMED, {**HELD, "bridge": {EGRESS: 500}}, "allocation", f"ask for {EGRESS} 1000 of it"),
        (
            NAMED,
            {**HELD, "other": {EGRESS: 1000}},
            "allocation",
            "of the provider other, and its ports ask for nothing",
        ),
    ],
)
def test_the_audit_finds_what_does_not_agree(
    profile: dict[str, Any], held: dict[str, dict[str, int]], kind: str, words: str
) -> None:
    found = told(profile, held)
    assert found
    assert {each for each, _ in found} == {kind}
    assert any(words in detail for _, detail in found), found


def test_the_audit_finds_what_is_held_for_ports_that_ask_for_nothing() -> None:
    (kind, detail), *_ = told({}, {"bridge": {EGRESS: 1000}}, asks=False)
    assert (kind, "ask for nothing of it" in detail) == ("allocation", True)
