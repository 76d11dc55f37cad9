"""Daemons that are started while the database server of one of their cells is stopped: a real one."""

from __future__ import annotations

import configparser
import json

import pytest
from support.daemons.daemons import Installation, put_apart
from support.labs.cells_away import CLOUD
from support.labs.small_lab import until
from support.servers import postgres_server

from droveway.lab.cloud import Cloud, parse_cloud
from droveway.lab.serve_ports import free_port
from droveway.persistence.journal.states import State

TWO = CLOUD.replace("{host1: {}}", "{host1: {}, host2: {}}").replace("  cell3: {hosts: {host5: {}}}\n", "")
TWO += "  far: {flavor: small, host: host3, image: base}\n"


@pytest.fixture(scope="module", name="cloud")
def fixture_cloud() -> Cloud:
    return parse_cloud(TWO, "test")


def test_daemons_start_and_move_servers_while_one_cell_is_away(site: Installation) -> None:
    """Lists show what answers and say what does not; once it is there they show all."""
    with postgres_server.running_server() as server:
        put_apart(site.lab, "cell2", server)
        server.kill()
        conductor = site.conductor()
        site.workers()
        code, said, complained = site.droveway("server", "list", "-f", "json")
        assert (code, [row["name"] for row in json.loads(said)]) == (0, ["web"])
        assert complained.startswith("warning: the database of cell cell2 does not answer: ")
        assert complained.count("\n") == 1
        code, said, complained = site.droveway("host", "list", "-f", "value", "-c", "name")
        assert (code, said.split()) == (0, ["host1", "host2"])
        assert "of cell cell2 does not answer" in complained
        code, said, _ = site.droveway("server", "show", "web", "-f", "value", "-c", "host")
        assert (code, said) == (0, "host1\n")
        move = site.told("move", "show", site.done("server", "migrate", "web").split()[1])["id"]
        assert site.await_rest_of(move) == State.VERIFYING, conductor.text()
        assert "Traceback" not in conductor.log.read_text()
        server.start()
        until(lambda: site.droveway("server", "list")[2] == "", "all cells answer")
        assert [row["name"] for row in site.told("server", "list")] == ["far", "web"]


def test_an_operator_works_in_the_cells_that_answer_while_one_is_away(site: Installation) -> None:
    """What needs the cell that is away says so in one sentence, and nothing there counts as unknown."""
    with postgres_server.running_server() as server:
        put_apart(site.lab, "cell2", server)
        conductor = site.conductor()
        site.workers()
        server.kill()
        for end, state in (("confirm", State.DONE), ("revert", State.REVERTED)):
            move = site.done("server", "migrate", "web").split()[1]
            assert site.await_rest_of(site.told("move", "show", move)["id"]) == State.VERIFYING, conductor.text()
            shown = site.told("move", "show", move)
            assert "droveway move confirm" in shown["next"]
            settled = site.refused("move", "settle", move, "finish_records", "--as", "done", "--reason", "x")
            assert "waits for confirm or revert, so nothing bars either" in settled
            site.done("server", end, "web")
            assert site.await_rest_of(shown["id"]) == state, conductor.text()
        site.done("host", "disable", "host2")
        site.done("host", "enable", "host2")
        for words in (("host", "down", "host2", "--i-made-sure", "x"), ("host", "forget", "host2")):
            assert "the worker of host host2 is registered" in site.refused(*words)
        for host in ("host2", "host3"):
            site.done("freeze", "--host", host)
            site.done("thaw", "--host", host)
        for words in (("server", "confirm", "far"), ("server", "show", "far"), ("host", "disable", "host3")):
            told = site.refused(*words)
            assert "nobody could look in cell cell2, whose database does not answer" in told
            assert told.count("\n") == 1
        code, said, _ = site.droveway("db", "check", "-f", "json")
        assert (code, [row["database"] for row in json.loads(said)]) == (3, ["cell cell2"])
        code, said, complained = site.droveway("audit", "-f", "json")
        assert (code, [(row["kind"], row["subject"]) for row in json.loads(said)]) == (3, [("cell", "cell2")]), said
        assert "3 hosts, 1 cells" in complained
        assert "Traceback" not in conductor.log.read_text()
        server.start()
        until(lambda: site.droveway("audit")[0] == 0, "the books of both cells balance")


def test_an_api_database_that_is_away_is_named_in_one_sentence(site: Installation) -> None:
    written = configparser.ConfigParser(interpolation=None)
    written.read(site.configuration)
    written["api_database"]["connection"] = f"postgresql://nova@127.0.0.1:{free_port()}/api"
    with site.configuration.open("w") as file:
        written.write(file)
    for words in (("server", "list"), ("host", "list")):
        code, _, complained = site.droveway(*words)
        assert code == 2
        assert complained.startswith("droveway: the database of [api_database] does not answer: ")
        assert complained.count("\n") == 1
