"""`tools/bench calls`: how often a move asks Neutron and Placement, by the number of guaranteed ports of its server.

The requests of a resize and its confirmation are counted where the lab's services take them: it takes no clock.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, Final

import bench_figures as figures

from droveway.clients.embedded.placement import _Transport
from droveway.clients.embedded.services import LocalService
from droveway.engines.operations import move_requests, submit
from droveway.lab import build, cloud
from droveway.lab.session import Lab

PORTS: Final = (1, 2, 4, 8)
MOST: Final = 1.0
"""The largest number of additional requests for each additional port."""

LOOKS: Final = "Neutron: looks"
PROFILES: Final = "Neutron: bindings written, with a profile"
OTHERS: Final = "Neutron: bindings activated and deleted, and the look at the role"
PLACEMENT_LOOKS: Final = "Placement: looks"
PLACEMENT_WRITES: Final = "Placement: writes"
ORDER: Final = (LOOKS, PROFILES, OTHERS, PLACEMENT_LOOKS, PLACEMENT_WRITES)

_PROBE: Final = "00000000-0000-0000-0000-000000000000"
_BRIDGE: Final = "{bandwidth: {br-a: {physical_network: a, egress_kbps: 9000, ingress_kbps: 9000}}, kpps: 90}"
_CLOUD: Final = f"""
cells: {{cell1: {{hosts: {{host1: {_BRIDGE}, host2: {_BRIDGE}}}}}}}
flavors: {{small: {{vcpus: 1, memory_mb: 256, root_gb: 1}}, large: {{vcpus: 2, memory_mb: 512, root_gb: 1}}}}
images: {{base: {{size_mb: 1}}}}
networks: {{a: {{physical_network: a}}}}
qos: {{gold: {{egress_kbps: 1000, ingress_kbps: 1000, kpps: 10}}}}
servers: {{web: {{flavor: small, host: host1, image: base, ports: [PORTS]}}}}
"""


def main() -> int:
    """Count the requests of one move for each number of ports."""
    parser = argparse.ArgumentParser(prog="tools/bench calls", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=1, help="is taken, and changes nothing: a count is a count")
    parser.add_argument("--write", action="store_true", help="put the figures in docs/benchmarks.rst")
    wanted = parser.parse_args()
    seen: Counter[str] = Counter()
    count(seen)
    found = {}
    for ports in PORTS:
        with tempfile.TemporaryDirectory(dir=figures.WORK) as folder:
            found[ports] = moved(Path(folder, "lab"), ports, seen)
    return figures.report(calls_bench(found), write=wanted.write)


def count(seen: Counter[str]) -> None:
    """Count each request from now on."""
    neutron, placement = LocalService.request, _Transport.send

    def asked(service: LocalService, url: str, method: str, **options: Any) -> Any:
        if url.startswith(("/ports", "/extensions")):
            seen[kind_of(method, url)] += 1
        return neutron(service, url, method, **options)

    def sent(transport: _Transport, request: Any, *parts: Any, **options: Any) -> Any:
        seen[PLACEMENT_LOOKS if request.method == "GET" else PLACEMENT_WRITES] += 1
        return placement(transport, request, *parts, **options)

    LocalService.request = asked  # type: ignore[method-assign]
    _Transport.send = sent  # type: ignore[method-assign]


def kind_of(method: str, url: str) -> str:
    """Return what a request to Neutron is for."""
    if method == "GET":
        return LOOKS
    with_profile = method == "POST" or re.fullmatch(r"/ports/[^/]+(/bindings/[^/]+)?", url)
    return PROFILES if method != "DELETE" and with_profile and _PROBE not in url else OTHERS


def moved(root: Path, ports: int, seen: Counter[str]) -> Counter[str]:
    """Move a server with so many ports to its end, and return the requests of that."""
    text = _CLOUD.replace("PORTS", ", ".join(["{network: a, qos: gold}"] * ports))
    build.create(root, cloud.parse_cloud(text, "bench")).close()
    lab = Lab.open(root)
    try:
        seen.clear()
        move = submit.submit(lab, submit.MoveSpec(server="web", flavor="large")).id
        waits = move_requests.carry(lab, move).state
        move_requests.file_request(lab, move, move_requests.confirm)
        ended = move_requests.carry(lab, move).state
        if (waits, ended) != ("verifying", "done"):
            raise RuntimeError(f"the move came to {waits} and ended {ended}")
        return Counter(seen)
    finally:
        lab.close()
        build.destroy(root)


def calls_bench(found: dict[int, Counter[str]]) -> figures.Bench:
    """Return the counts, what each additional port adds, and the goals."""
    first, last = min(found), max(found)
    more = {kind: (found[last][kind] - found[first][kind]) / (last - first) for kind in ORDER}
    return figures.Bench(
        name="calls",
        title="Requests to Neutron and Placement",
        text=(
            "A resize and its confirmation of a server whose ports are each guaranteed bandwidth and a packet rate, "
            "counted where the lab's services take the requests. Each look asks for all ports at once, save the one at "
            "a port's bindings before one of them is made active."
        ),
        head=["requests", *(f"{ports} port{'s' * (ports > 1)}" for ports in found), "a port more"],
        rows=[[kind, *(str(counts[kind]) for counts in found.values()), f"{more[kind]:g}"] for kind in ORDER],
        goals=[
            figures.at_most("looks at Neutron for a port more", more[LOOKS], MOST),
            figures.at_most("profiles written for a port more", more[PROFILES], MOST),
        ],
        bars=[(f"{ports} port{'s' * (ports > 1)}", float(sum(counts.values()))) for ports, counts in found.items()],
        unit="requests of one move",
    )


if __name__ == "__main__":
    sys.exit(main())
