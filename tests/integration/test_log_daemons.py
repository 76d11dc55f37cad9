"""The logs of daemons: a move's id finds what conductors and hosts did for it, in text and in JSON."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from support.daemons.daemons import Installation
from support.labs.small_lab import file_flow, history, read_move, until
from support.servers import postgres_server

from droveway.persistence.journal.states import State


@pytest.mark.parametrize("site", ["postgresql"], indirect=True)
def test_a_moves_id_finds_its_story_on_a_conductor_that_logs_json_and_on_its_hosts(site: Installation) -> None:
    """A database that goes away in the middle is told without a statement and without the password of its URL."""
    assert site.server is not None
    workers = site.workers()
    with site.configuration.open("a") as file:
        file.write("[DEFAULT]\nuse_json = true\n")
    conductor = site.conductor()
    move = file_flow(site.lab, "resize")
    site.await_step(move, "move_ports")
    site.server.kill()
    until(lambda: "waits for ZooKeeper or a database" in conductor.text(), "that the conductor notices")
    site.server.start()
    assert site.await_rest(move) == State.VERIFYING, conductor.text()
    until(lambda: "the move's state is verifying" in conductor.text(), "the last line")
    said = conductor.log.read_text()
    lines: list[dict[str, Any]] = [json.loads(line) for line in said.splitlines()]
    story = [line for line in lines if move in json.dumps(line)]
    server = read_move(site.lab, move).server
    (flow,) = {row.flow_uuid for row in history(site.lab, move)}
    ids = {"request_id": f"req-{flow}", "move_id": move, "server_id": server}
    assert [line["message"] for line in story if line["context"] != ids] == []
    short = move[:8]
    messages = [re.sub(r" after [0-9.]+ s.*", "", line["message"]) for line in story]
    for row in history(site.lab, move):
        if row.step != "alternates":
            assert f"Move {short}: step {row.step} is done" in messages
    assert messages.count(f"Move {short}: resize has ended, and the move's state is verifying") == 1
    assert [line["traceback"] for line in lines if line["traceback"]] == []
    assert not re.search(r"\b(SELECT|UPDATE|INSERT)\b", said)
    assert site.places_of(postgres_server.PASSWORD) == []
    told = [line for daemon in workers.values() for line in daemon.log.read_text().splitlines() if short in line]
    assert [line for line in told if f"[req-{flow} {move} {server}]" not in line] == []
    assert len([line for line in told if f"Move {short}: copy_disks on host" in line]) == 2
