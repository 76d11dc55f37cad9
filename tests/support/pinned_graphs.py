"""Pins the graphs in tests/data/graphs, a file for each kind and version: flows that run were begun with them.

    PYTHONPATH=tests .venv/bin/python -m support.pinned_graphs

pins each graph that has no file yet.  It fails, and says what to do, where a graph is no more what its file says.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from droveway.flows import registry
from droveway.flows.graph import Graph

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "tests" / "data" / "graphs"
COMMAND = "PYTHONPATH=tests .venv/bin/python -m support.pinned_graphs"


def name_of(graph: Graph) -> str:
    """The graph's kind and version, as operators read them."""
    return f"{graph.kind}@{graph.version}"


def file_of(graph: Graph) -> Path:
    """The file that pins the graph."""
    return FOLDER / f"{name_of(graph)}.json"


def facts(graph: Graph) -> dict[str, Any]:
    """What its file says of a graph: all that its digest is made of, and the digest."""
    steps = list(graph.walk())
    return {
        "steps": graph.names(),
        "no_return": graph.no_return.step_name(),
        "needs": {step.step_name(): list(step.needs) for step in steps if step.needs},
        "gives": {step.step_name(): step.gives for step in steps if step.gives},
        "digest": graph.digest(),
    }


def pinned(graph: Graph) -> dict[str, Any]:
    """What the graph was when it was pinned; nothing for one that was not."""
    file = file_of(graph)
    return dict(json.loads(file.read_text())) if file.exists() else {}


def wrong(graph: Graph) -> str:
    """Say what to do where the graph is not what its file says; empty where it is."""
    name, file, then = name_of(graph), file_of(graph).relative_to(ROOT), pinned(graph)
    if not then:
        return f"{name} is not pinned: once it is as it is to be released, run  {COMMAND}"
    changed = [what for what, value in facts(graph).items() if value != then.get(what)]
    if not changed:
        return ""
    version = registry.latest(graph.kind).version + 1
    return (
        f"{name} is no more what {file} says ({', '.join(changed)}), and flows that run were begun with that: leave "
        f"{name} as it was, give what you changed the version {version} beside it in the GRAPHS of its file "
        f"(flows/confirm.py has an example), then pin it with  {COMMAND}.  Only a graph that no release has had may "
        f"change: remove {file}, then run the same"
    )


def strays() -> list[str]:
    """Say what to do of the files that belong to no graph."""
    known = {file_of(graph) for graph in registry.GRAPHS.values()}
    return [
        f"{file.relative_to(ROOT)} belongs to no graph of flows/registry.py: flows of {file.stem} may still run, and "
        "nobody could resume them; put the graph back, or remove the file where no release has had it"
        for file in sorted(FOLDER.glob("*.json"))
        if file not in known
    ]


def main() -> int:
    """Pin what is new, tell what is wrong."""
    for graph in registry.GRAPHS.values():
        if not pinned(graph):
            file_of(graph).write_text(json.dumps(facts(graph), indent=2) + "\n")
            sys.stdout.write(f"pinned {name_of(graph)}\n")
    told = [why for why in map(wrong, registry.GRAPHS.values()) if why] + strays()
    for why in told:
        sys.stderr.write(f"{why}\n")
    return 1 if told else 0


if __name__ == "__main__":
    sys.exit(main())
