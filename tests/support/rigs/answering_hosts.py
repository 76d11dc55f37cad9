"""Answers for hosts: a stand-in for ZooKeeper in which a command has its answer as soon as it is posted."""

from __future__ import annotations

from typing import Any

import msgspec
from support.rows.moving_rows import DESTINATION, SOURCE

from droveway.clients import zookeeper
from droveway.clients.zookeeper import command_path, result_path, worker_path
from droveway.wire import codec, commands


class AnsweringHosts:
    """Everything but the answer is an embedded ZooKeeper's; both hosts of a move are up at first."""

    def __init__(self) -> None:
        self._real = zookeeper.connect_embedded(zookeeper.embedded_store())
        self.says: dict[tuple[str, str], Any] = {}
        """Host and action → the value of the answer, or the StepError's fields as an ``error``."""
        self.mute: set[str] = set()
        self.asked: list[commands.Command] = []
        for host in (SOURCE, DESTINATION):
            record = commands.Registration(host=host, version="1", hypervisor="toy", actions=[], address="unix:/none")
            self._real.create(worker_path(host), codec.encode(record))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def say(self, host: str, action: str, value: Any) -> None:
        """Let the host answer this to every such command from now on."""
        self.says[host, action] = value if isinstance(value, dict) else msgspec.to_builtins(value)

    def fail(self, host: str, action: str, code: str, message: str) -> None:
        """Let the host fail every such command from now on."""
        self.says[host, action] = {"error": {"code": code, "message": message, "host": host}}

    def stop(self, host: str) -> None:
        """Take the host's worker away."""
        self._real.delete(worker_path(host))

    def left(self) -> list[str]:
        """The nodes of commands and answers that stand."""
        return [
            f"{host}: {key}"
            for host in (SOURCE, DESTINATION)
            for folder in (command_path, result_path)
            for key in self._real.children(folder(host))
        ]

    def create_guarded(self, path: str, data: bytes, **guard: Any) -> bool:
        """Post a command, and its answer."""
        made: bool = self._real.create_guarded(path, data, **guard)
        command = codec.decode_command(data)
        if made and command.host not in self.mute:
            self.asked.append(command)
            said = self.says[command.host, command.action]
            facts = said if set(said) == {"error"} else {"value": said}
            answer = commands.Result(key=command.key, epoch=command.epoch, **facts)
            self._real.create(result_path(command.host, command.key), codec.encode(answer))
        return made
