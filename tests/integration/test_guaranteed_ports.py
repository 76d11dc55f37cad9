"""Servers with ports that are guaranteed bandwidth and packet rates: each operation, looked at from outside."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from support.labs.guaranteed import AGENT, EGRESS, INGRESS, PACKETS, holding, tables
from support.labs.operations import Stage, stage

from droveway.clients.embedded.services import LocalService
from droveway.errors import DestinationFault

BRIDGES = (
    "bandwidth: {br-a: {physical_network: net-a, egress_kbps: 4000, ingress_kbps: 4000},"
    " br-b: {physical_network: net-b, egress_kbps: 4000, ingress_kbps: 4000}}, kpps: 40"
)
PLACES = {
    "one cell": f"cells: {{cell1: {{hosts: {{host1: {{{BRIDGES}}}, host2: {{{BRIDGES}}}, bare: {{}}}}}}}}\n",
    "cells": "options: {cross_cell: true}\n"
    f"cells: {{cell1: {{hosts: {{host1: {{{BRIDGES}}}}}}}, cell2: {{hosts: {{host2: {{{BRIDGES}}}, bare: {{}}}}}}}}\n",
}
CLOUD = """
flavors:
  small: {vcpus: 1, memory_mb: 256, root_gb: 1}
  large: {vcpus: 2, memory_mb: 512, root_gb: 1}
images: {base: {size_mb: 1}}
networks: {a: {physical_network: net-a}, b: {physical_network: net-b}}
qos:
  gold: {egress_kbps: 1000, ingress_kbps: 1500, kpps: 10}
  more: {egress_kbps: 1100, ingress_kbps: 1400, kpps: 12}
  old: {egress_kbps: 500, ingress_kbps: 600}
servers:
  fast:
    flavor: small
    host: host1
    image: base
    ports: [{network: a, qos: gold}, {network: b, qos: old, format: legacy}]
  twin: {flavor: small, host: host1, image: base, ports: [{network: a, qos: old}, {network: a, qos: old}, {}]}
"""
ENDS = ("host2", "host1")
"""Where a move of `fast` leads, and where it came from."""

NOBODY = "00000000-0000-0000-0000-000000000000"
"""A port that does not exist: Neutron is asked to bind it, to see whether the role for that is there."""
HELD = {
    "fast": {
        f"{AGENT}:br-a": {EGRESS: 1000, INGRESS: 1500},
        f"{AGENT}:br-b": {EGRESS: 500, INGRESS: 600},
        AGENT: {PACKETS: 10},
    },
    "twin": {f"{AGENT}:br-a": {EGRESS: 1000, INGRESS: 1200}},
}
"""What a server's ports ask of a host, by the provider below it."""
NAMED = {"fast": [[AGENT, f"{AGENT}:br-a"], [f"{AGENT}:br-b"]], "twin": [[], [f"{AGENT}:br-a"], [f"{AGENT}:br-a"]]}
"""The providers that each port's binding names there."""


@pytest.fixture(scope="module", name="lab", params=PLACES)
def fixture_lab(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Stage]:
    root = tmp_path_factory.mktemp("guaranteed") / "lab"
    with stage(root, PLACES[request.param] + CLOUD) as made, made.running():
        yield made


def held(lab: Stage, consumer: str) -> dict[str, dict[str, int]]:
    """Provider's name → class → amount, of what ports ask for, from Placement's tables."""
    return holding(lab, consumer)[0]


def named(lab: Stage, server: str) -> dict[str, list[list[str]]]:
    """Host → of each port's binding there the names of the providers that it names, from Neutron's tables."""
    with tables(lab, "placement.sqlite") as rows:
        names = {row["uuid"]: row["name"] for row in rows.execute("SELECT uuid, name FROM resource_providers")}
    found: dict[str, list[list[str]]] = {}
    with tables(lab, "services.sqlite") as rows:
        for row in rows.execute(
            "SELECT host, profile FROM port_bindings JOIN ports ON ports.id = port WHERE server = ?", (server,)
        ):
            told = json.loads(row["profile"]).get("allocation") or {}
            given = [told] if isinstance(told, str) else list(told.values())
            found.setdefault(row["host"], []).append(sorted(names[each] for each in given))
    return {host: sorted(ports) for host, ports in found.items()}


def on(host: str, name: str) -> dict[str, dict[str, int]]:
    return {f"{host}:{provider}": amounts for provider, amounts in HELD[name].items()}


def assert_on(lab: Stage, name: str, host: str) -> None:
    """The server holds what its ports ask for on the host and nowhere else, and they name who gives it."""
    assert held(lab, lab.id_of(name)) == on(host, name)
    assert named(lab, lab.id_of(name)) == {
        host: sorted([f"{host}:{provider}" for provider in port] for port in NAMED[name])
    }
    lab.assert_balanced()


@pytest.mark.parametrize("name", ["fast", "twin"])
@pytest.mark.parametrize("resized", [True, False], ids=["resize", "migrate"])
def test_what_ports_are_guaranteed_goes_and_comes_back_with_the_server(lab: Stage, name: str, resized: bool) -> None:
    """R4-01, R4-07, R4-13, R4-20: without an option; on the new host alone, and the bindings name who gives it."""
    assert_on(lab, name, "host1")
    words = ["server", "resize", name, "--flavor", "large"] if resized else ["server", "migrate", name]
    lab.cli(*words, "--wait")
    assert held(lab, lab.move(name).id) == on("host1", name)
    assert_on(lab, name, "host2")
    lab.cli("server", "revert", name)
    assert_on(lab, name, "host1")
    lab.cli(*words, "--wait")
    lab.cli("server", "confirm", name)
    assert held(lab, lab.move(name).id) == {}
    assert_on(lab, name, "host2")
    back = ["server", "migrate", name, "--host", "host1", "--wait"]
    lab.cli(*back)
    lab.cli("server", "confirm", name)
    if resized:
        lab.cli("server", "resize", name, "--flavor", "small", "--wait")
        lab.cli("server", "confirm", name)
        if lab.server(name).host != "host1":
            lab.cli(*back)
            lab.cli("server", "confirm", name)
    assert_on(lab, name, "host1")


def test_what_ports_are_guaranteed_is_given_up_by_a_shelve_and_taken_again(lab: Stage) -> None:
    """R4-05: a shelved server holds nothing, and names nobody; unshelved it does, wherever it starts."""
    lab.cli("server", "shelve", "fast", "--wait")
    assert held(lab, lab.id_of("fast")) == {}
    assert named(lab, lab.id_of("fast")) in ({}, {"": [[], []]})
    lab.assert_balanced()
    to_cell = [] if lab.server("fast").cell == lab.lab.host("host2").cell else ["--to-cell", lab.lab.host("host2").cell]
    lab.cli("server", "unshelve", "fast", "--host", "host2", *to_cell, "--wait")
    assert_on(lab, "fast", "host2")
    lab.cli("server", "migrate", "fast", "--host", "host1", "--wait")
    lab.cli("server", "confirm", "fast")
    assert_on(lab, "fast", "host1")


def test_a_policy_that_was_changed_is_what_the_next_move_claims(lab: Stage) -> None:
    """R4-06: what a port asks for is read again when a move begins, and nothing of before is asked."""
    network, server = lab.lab.cloud.network, lab.id_of("twin")
    port = next(port.id for port in network.listed_ports(server) if port.resources is not None)

    def follow(policy: str, host: str) -> None:
        body = {"port": {"qos_policy_id": network.named("/qos/policies", policy)}}
        assert lab.lab.cloud.network_root.request(f"/ports/{port}", "PUT", json=body).status_code == HTTPStatus.OK
        lab.cli("server", "migrate", "twin", "--host", host, "--wait")
        lab.cli("server", "confirm", "twin")
        lab.assert_balanced()

    follow("gold", "host2")
    assert held(lab, server) == {
        f"host2:{AGENT}:br-a": {EGRESS: 1500, INGRESS: 2100},
        f"host2:{AGENT}": {PACKETS: 10},
    }
    follow("old", "host1")
    assert_on(lab, "twin", "host1")


def test_neutron_is_asked_once_more_for_each_port_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R4-21: looks and profiles that are written are a constant number, and one for each port of the server."""
    asked: list[str] = []
    request = LocalService.request

    def counted(service: LocalService, url: str, method: str, **options: Any) -> Any:
        if url.startswith("/ports") and NOBODY not in url:
            asked.append("look" if method == "GET" else f"{method} {url.rpartition('/')[2]}")
        return request(service, url, method, **options)

    monkeypatch.setattr(LocalService, "request", counted)
    found = []
    for ports in (1, 4):
        text = CLOUD.replace(
            "{network: a, qos: gold}, {network: b, qos: old, format: legacy}",
            ", ".join(["{network: a, qos: old}"] * ports),
        )
        with stage(tmp_path / f"lab{ports}", PLACES["one cell"] + text) as lab:
            asked.clear()
            lab.cli("server", "migrate", "fast", "--host", "host2", "--wait")
            lab.cli("server", "confirm", "fast")
            found.append((asked.count("look"), asked.count("POST bindings"), asked.count("PUT host2")))
    (looks, made, renamed), (more_looks, more_made, more_renamed) = found
    assert (more_looks - looks, more_made - made, more_renamed - renamed) == (3, 3, 0)
    assert (made, renamed) == (1, 0)


def test_a_host_that_cannot_give_it_is_named_with_the_reason(lab: Stage) -> None:
    """Nothing is written."""
    told = lab.refused("server", "migrate", "fast", "--host", "bare")
    assert "no provider with CUSTOM_PHYSNET_NET_A and CUSTOM_VNIC_TYPE_NORMAL" in told
    assert f"{EGRESS}:1000" in told
    assert_on(lab, "fast", "host1")


def test_the_first_host_that_fails_gives_it_back(lab: Stage) -> None:
    """The binding and the claim of a host on which a step fails are gone, and the move is undone."""
    lab.arm("define_guest", "fail", host="host2")
    lab.cli("server", "migrate", "fast", "--host", "host2", "--wait", code=3)
    assert_on(lab, "fast", "host1")
    assert held(lab, lab.move("fast").id) == {}


@pytest.mark.parametrize("end", ["revert", "confirm"])
@pytest.mark.parametrize(("name", "place"), [("fast", "one cell"), ("twin", "cells")])
def test_a_placement_that_was_put_back_gets_back_what_ports_hold(
    tmp_path: Path, name: str, place: str, end: str
) -> None:
    """Of both consumers of a move that waits; the audit names the command, and it ends as any other."""
    with stage(tmp_path / "lab", PLACES[place] + CLOUD) as lab:
        _settle(lab, name, end)


def _settle(lab: Stage, name: str, end: str) -> None:
    lab.cli("server", "migrate", name, "--host", "host2", "--wait")
    _lose(lab, name)
    assert (held(lab, lab.id_of(name)), held(lab, lab.move(name).id)) == (on("host2", name), on("host1", name))
    lab.cli("server", end, name)
    if end == "confirm":
        assert_on(lab, name, "host2")
        lab.cli("server", "migrate", name, "--host", "host1", "--wait")
        lab.cli("server", "confirm", name)
    assert_on(lab, name, "host1")


def _lose(lab: Stage, name: str) -> None:
    """Put Placement back to before the claim of the server's move, and settle it as the audit says."""
    move, server = lab.move(name), lab.id_of(name)
    placement = lab.lab.cloud.placement
    owner = {"project_id": lab.lab.identity.project, "user_id": lab.lab.identity.user}
    source = placement.allocations(move.id).allocations
    placement.release(move.id)
    placement.ensure_allocation(server, source, **owner)
    told = json.loads(lab.cli("audit", "-f", "json", code=3))
    command = f"droveway move settle {move.id[:8]} --cell placement --reason TEXT"
    assert any(row["mend"] == command for row in told)
    lab.cli("move", "settle", move.id[:8], "--cell", "placement", "--reason", "put back from last night's copy")


CHANGED = {
    "more": {
        f"{AGENT}:br-a": {EGRESS: 1100, INGRESS: 1400},
        f"{AGENT}:br-b": {EGRESS: 500, INGRESS: 600},
        AGENT: {PACKETS: 12},
    },
    "old": {f"{AGENT}:br-a": {EGRESS: 500, INGRESS: 600}, f"{AGENT}:br-b": {EGRESS: 500, INGRESS: 600}},
    None: {f"{AGENT}:br-b": {EGRESS: 500, INGRESS: 600}},
}
"""What `fast` asks of a host once its first port has another policy, or none."""


@pytest.mark.parametrize(
    ("policy", "place", "end"),
    [
        ("more", "one cell", "revert"),
        ("more", "cells", "confirm"),
        ("old", "one cell", "confirm"),
        (None, "cells", "revert"),
    ],
)
def test_a_placement_that_was_put_back_gets_what_ports_ask_for_by_now(
    tmp_path: Path, policy: str | None, place: str, end: str
) -> None:
    """A policy that was changed while the move waited counts on the destination, and that of before on the source."""
    with stage(tmp_path / "lab", PLACES[place] + CLOUD) as lab:
        lab.cli("server", "migrate", "fast", "--host", "host2", "--wait")
        server, move = lab.id_of("fast"), lab.move("fast").id
        network = lab.lab.cloud.network
        port = next(each.id for each in network.listed_ports(server) if each.resources and not each.resources.legacy)
        body = {"port": {"qos_policy_id": policy and network.named("/qos/policies", policy)}}
        assert lab.lab.cloud.network_root.request(f"/ports/{port}", "PUT", json=body).status_code == HTTPStatus.OK
        _lose(lab, "fast")
        there, back = ({f"{host}:{name}": CHANGED[policy][name] for name in CHANGED[policy]} for host in ENDS)
        assert (held(lab, server), held(lab, move)) == (there, on("host1", "fast"))
        lab.assert_balanced()
        again = ("move", "settle", move[:8], "--cell", "placement", "--reason", "asked twice")
        assert "nothing differs" in lab.cli(*again)
        lab.cli("server", end, "fast")
        assert held(lab, move) == {}
        if end == "revert":
            assert held(lab, server) == on("host1", "fast")
            lab.cli("audit", "--heal", "--yes")
        assert held(lab, server) == (back if end == "revert" else there)
        lab.assert_balanced()


def test_the_audit_finds_what_ports_ask_for_and_nobody_holds(lab: Stage) -> None:
    """R4-20: a binding that names nobody, or the wrong one; a server that holds too much, or too little."""
    server = lab.id_of("twin")
    ports = [port for port in lab.lab.cloud.network.listed_ports(server) if port.resources is not None]
    placement, network = lab.lab.cloud.placement, lab.lab.cloud.network
    was = placement.allocations(server)
    (bridge,) = [each for each in was.allocations if EGRESS in was.allocations[each]]
    owner = {"project_id": was.project_id, "user_id": was.user_id}

    def audited() -> list[str]:
        found = json.loads(lab.cli("audit", "-f", "json", code=3))
        return [row["detail"] for row in found]

    network.set_profile(ports[0].id, {})
    assert any("names nobody who gives it" in told for told in audited())
    other = next(each.uuid for each in placement.providers() if each.name == f"host2:{AGENT}:br-a")
    # Neutron keeps what it could not bind.
    with pytest.raises(DestinationFault):
        network.set_profile(ports[0].id, {"allocation": dict.fromkeys(ports[0].profile["allocation"], other)})
    assert any(f"names the provider {other}" in told and "holds nothing" in told for told in audited())
    network.set_profile(ports[0].id, ports[0].profile)
    for factor in (2, 0):
        wrong = {each: dict(amounts) for each, amounts in was.allocations.items()}
        wrong[bridge] = {EGRESS: 1000 * factor, INGRESS: 1200}
        wrong[bridge] = {name: amount for name, amount in wrong[bridge].items() if amount}
        placement.ensure_allocation(server, wrong, **owner)
        assert any(f"of the provider {bridge}, and its ports ask for {EGRESS} 1000" in told for told in audited())
    placement.ensure_allocation(server, was.allocations, **owner)
    assert_on(lab, "twin", "host1")
