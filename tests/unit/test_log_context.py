"""Each line of a log says whose it is: of which request, which move and which server."""

from __future__ import annotations

import concurrent.futures
import json
import logging
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from oslo_config import cfg
from oslo_context import context
from oslo_log import formatters

from droveway import log_context
from droveway.cli import daemon
from droveway.conf import settings

IDS = "[req-flow1 move1 server1]"


@pytest.fixture(name="conf")
def fixture_conf(tmp_path: Path) -> cfg.ConfigOpts:
    file = tmp_path / "droveway.conf"
    file.write_text("")
    return settings.load_deployment(file)


@pytest.fixture(autouse=True)
def _no_move() -> Iterator[None]:
    """Whatever another test has left in the store of this thread is hidden."""
    log_context.setter_of_these_ids()()
    yield
    log_context.setter_of_these_ids()()


def line(conf: cfg.ConfigOpts, *, logger: str = "sqlalchemy.engine", error: bool = False) -> str:
    """What a daemon writes for a line of that logger."""
    exc_info = sys.exc_info() if error else None
    record = logging.LogRecord(logger, logging.INFO, __file__, 1, "said", None, exc_info)
    return formatters.ContextFormatter(config=conf).format(record)


def fail() -> None:
    raise LookupError("unforeseen")


def in_json() -> dict[str, object]:
    """What a daemon with ``use_json`` writes."""
    record = logging.LogRecord("kazoo", logging.INFO, __file__, 1, "said", None, None)
    found: dict[str, object] = json.loads(formatters.JSONFormatter().format(record))
    return found


def test_every_line_of_a_thread_carries_the_ids_until_the_move_is_given_back(conf: cfg.ConfigOpts) -> None:
    with log_context.of_move("move1", server_id="server1", flow="flow1"):
        assert line(conf).endswith(f" INFO sqlalchemy.engine {IDS} said")
    assert line(conf).endswith(" INFO sqlalchemy.engine [-] said")


def test_an_error_takes_the_ids_away_too(conf: cfg.ConfigOpts) -> None:
    with pytest.raises(LookupError), log_context.of_move("move1", server_id="server1", flow="flow1"):
        raise LookupError
    assert "move1" not in line(conf)


def test_a_server_that_is_known_later_is_added(conf: cfg.ConfigOpts) -> None:
    with log_context.of_move("move1"):
        assert line(conf).endswith(" [- move1 -] said")
        log_context.name_server("server1")
        assert line(conf).endswith(" [- move1 server1] said")
    log_context.name_server("server2")
    assert "server2" not in line(conf)


def test_a_move_within_another_gives_the_outer_one_back(conf: cfg.ConfigOpts) -> None:
    with log_context.of_move("move1", server_id="server1", flow="flow1"):
        with log_context.of_move("move2"):
            assert "move1" not in line(conf)
        assert IDS in line(conf)


def test_a_thread_has_the_ids_of_another_only_when_it_adopts_them(conf: cfg.ConfigOpts) -> None:
    with log_context.of_move("move1", server_id="server1", flow="flow1"):
        with concurrent.futures.ThreadPoolExecutor(1) as stranger:
            assert "move1" not in stranger.submit(line, conf).result()
        with concurrent.futures.ThreadPoolExecutor(1, initializer=log_context.setter_of_these_ids()) as helper:
            assert IDS in helper.submit(line, conf).result()


def test_every_line_of_a_traceback_carries_the_ids(conf: cfg.ConfigOpts) -> None:
    with log_context.of_move("move1", server_id="server1", flow="flow1"):
        try:
            fail()
        except LookupError:
            written = line(conf, error=True).splitlines()
            record = logging.LogRecord("droveway", logging.ERROR, __file__, 1, "said", None, sys.exc_info())
            of_lab = log_context.LabFormatter().format(record).splitlines()
    assert any("LookupError: unforeseen" in each for each in written)
    assert "LookupError: unforeseen" in of_lab[-1]
    assert len(written) > 3
    assert len(of_lab) > 3
    assert [each for each in [*written, *of_lab] if IDS not in each] == []


def test_a_line_in_json_has_the_ids_as_values() -> None:
    with log_context.of_move("move1", server_id="server1", flow="flow1"):
        assert in_json()["context"] == {"request_id": "req-flow1", "move_id": "move1", "server_id": "server1"}
    assert in_json()["context"] == {}


def test_what_the_placement_of_a_lab_leaves_in_the_store_changes_no_line_of_the_lab() -> None:
    record = logging.LogRecord("droveway", logging.INFO, __file__, 1, "said", None, None)
    with log_context.of_move("move1", server_id="server1", flow="flow1"):
        context.RequestContext(request_id="req-of-placement")
        assert IDS in log_context.LabFormatter().format(record)


def test_an_error_that_ends_a_thread_of_a_daemon_stands_in_its_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(threading, "excepthook", daemon.log_thread)
    thread = threading.Thread(target=fail, name="keeper")
    thread.start()
    thread.join()
    (record,) = caplog.records
    assert (record.levelname, record.getMessage()) == (
        "ERROR",
        "The thread keeper ended after an unexpected error",
    )
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], LookupError)
