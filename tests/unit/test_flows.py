"""The graphs: their order is flows.md's, their shape is pinned, and every step says how it is undone."""

from __future__ import annotations

import pytest

from droveway.errors import NotFound
from droveway.flows import pictures, registry
from droveway.flows.graph import Graph
from droveway.flows.step import Step

FORWARD = [
    "record_before",
    "accept",
    "record_migration",
    "choose_destinations",
    "alternates",
    "claim",
    "record_destination",
    "check_destination",
    "find_storage",
    "reserve_ports",
    "reserve_volumes",
    "mark_migrating",
    "stop_guest",
    "release_source",
    "set_aside",
    "copy_disks",
    "fit_disks",
    "move_volumes",
    "move_ports",
    "connect_destination",
    "define_guest",
    "switch_records",
    "start_guest",
    "save_request_spec",
    "finish_records",
]
ORDER = {
    "resize": FORWARD,
    "migrate": FORWARD,
    "confirm": [
        "mark_confirming",
        "check_destination_copy",
        "check_source",
        "discard_source",
        "keep_copy",
        "release_source_allocation",
        "settle_records",
    ],
    "revert": [
        "mark_reverting",
        "check_source",
        "reserve_ports",
        "reserve_volumes",
        "stop_guest",
        "release_destination",
        "move_volumes",
        "move_ports",
        "restore_disks",
        "prepare_source_guest",
        "switch_records",
        "start_guest",
        "discard_destination",
        "return_allocation",
        "restore_request_spec",
        "settle_records",
    ],
    "delete": [
        "mark_deleting",
        "stop_guest",
        "disconnect_guest",
        "remove_guest",
        "delete_ports",
        "delete_attachments",
        "release_allocation",
        "settle_records",
        "forget_request",
    ],
}
ADDED = {("confirm", 1): {"keep_copy"}}
"""What an older version of a graph does not have yet."""
NO_RETURN = {
    "resize": "start_guest",
    "migrate": "start_guest",
    "confirm": "discard_source",
    "revert": "start_guest",
    "delete": "mark_deleting",
}
# A change here is a change of a released graph: running flows were begun with the old one, so it needs a new version.
DIGESTS: dict[str, str] = {
    "confirm@1": "6acd2f81b1efe4c360f2201185959d6bff8d6bc0689b17f4d5d796a07362d9b3",
    "resize": "143ae9b262ff029bef0d340e90477b2c3c8c0a46131831cac6d09947d8b1e81e",
    "migrate": "9886835c73acff333a4496738ac0754ce870e4ffa356f3bb83ae445460f4b864",
    "confirm": "0f69d0a33784856173bfcaa81e344e725edc2418a4ac3fa4580be1464d04e009",
    "revert": "1c5af3f4e5a284e734c069dd54096385e61f0cb27bff5902712546b4ff7579f9",
    "delete": "cfc0b88fdb0c20a3e28b61b2a783c2e54997e4efa653ee8c1307d807eec36115",
}

GRAPHS = pytest.mark.parametrize(
    "graph", list(registry.GRAPHS.values()), ids=lambda graph: f"{graph.kind}{graph.version}"
)


@GRAPHS
def test_the_order_is_the_declared_one(graph: Graph) -> None:
    """RC-01: each operation is a graph of its own, in the order that was decided."""
    later = ADDED.get((graph.kind, graph.version), set())
    assert graph.names() == [name for name in ORDER[graph.kind] if name not in later]
    assert graph.no_return.step_name() == NO_RETURN[graph.kind]


def test_resize_and_migrate_share_one_graph() -> None:
    """R0-01: only flavor and host rules differ."""
    assert registry.latest("resize").names() == registry.latest("migrate").names()


@GRAPHS
def test_every_step_is_undone_or_says_why_not(graph: Graph) -> None:
    """RC-02: every step has an undo; one that has none says why, and only then does it lack the method."""
    for step in graph.walk():
        has_undo = step.undo is not Step.undo
        assert bool(step.undoes) != bool(step.no_undo), step.step_name()
        assert has_undo or step.no_undo, step.step_name()


@GRAPHS
def test_nothing_beyond_the_point_of_no_return_has_an_undo(graph: Graph) -> None:
    steps = list(graph.walk())
    beyond = steps[steps.index(graph.no_return) + 1 :]
    assert beyond
    assert all(step.no_undo for step in beyond)


@GRAPHS
def test_what_a_step_needs_is_given_before(graph: Graph) -> None:
    given = {"candidates", "destination"} if graph.tried else set()
    for step in graph.walk():
        assert set(step.needs) <= given, step.step_name()
        given |= {step.gives} - {""}


@GRAPHS
def test_a_released_graph_never_changes(graph: Graph) -> None:
    newest = graph is registry.latest(graph.kind)
    assert graph.digest() == DIGESTS[graph.kind if newest else f"{graph.kind}@{graph.version}"]


@GRAPHS
def test_a_picture_names_every_step(graph: Graph) -> None:
    for picture in (pictures.text(graph), pictures.mermaid(graph), pictures.dot(graph)):
        assert all(name in picture for name in graph.names())
    lines = pictures.text(graph).split("\n")
    assert [line.split("\t")[0] for line in lines] == graph.names()
    assert [line.split("\t")[0] for line in lines if line.endswith("\tPONR")] == [NO_RETURN[graph.kind]]


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(NotFound, match="the kinds are resize, migrate"):
        registry.latest("shelve")
