"""One name, one machine: a second live worker of a host takes no commands."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.labs.small_lab import until
from support.rigs.worker_rig import cloud

from droveway.clients.zookeeper import command_path, result_path, worker_path
from droveway.wire import codec, commands
from droveway.workers import daemon

NAMESAKE = codec.encode(
    commands.Registration(
        host="alpha", version="1", hypervisor="sandbox", actions=[], address="", boot="another machine", pid=7
    )
)


def test_a_second_machine_of_one_name_takes_no_commands_while_the_first_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(daemon, "POLL_EVERY", 0.05)
    with cloud(tmp_path) as site:
        site.make_server()
        first, second = site.worker("alpha"), site.worker("alpha")
        first.coordination.create(worker_path("alpha"), NAMESAKE, ephemeral=True)
        command = site.command("alpha", "describe_guest")
        site.coordination.create(command_path("alpha", command.key), codec.encode(command))
        second.start()
        try:
            until(lambda: "another machine has a live worker of host alpha" in caplog.text, "that it is refused")
            node = site.coordination.get(worker_path("alpha"))
            assert node is not None
            assert node[0] == NAMESAKE
            assert site.coordination.get(result_path("alpha", command.key)) is None
            first.coordination.close()
            until(lambda: site.coordination.get(result_path("alpha", command.key)), "that it takes the first's place")
        finally:
            second.stop()
            second.coordination.close()
