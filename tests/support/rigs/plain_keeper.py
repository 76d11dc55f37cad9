"""A keeper whose policies file at once what they decide: no site is asked whether a person may."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from droveway.clients.zookeeper import Coordination
from droveway.engines.conductor.taskflow.board import MoveBoard
from droveway.engines.keeper.keeper import Keeper
from droveway.engines.keeper.policies import EndWait
from droveway.persistence.database import Database
from droveway.persistence.journal import kinds, requests
from droveway.persistence.journal.moves import FlowRef


class PlainKeeper(Keeper):
    """``options`` are further ones of a keeper."""

    def __init__(
        self,
        coordination: Coordination,
        journal: Database,
        board: MoveBoard,
        flow_of: Callable[[str], FlowRef],
        **options: Any,
    ) -> None:
        def filing(due: EndWait) -> requests.Filing:
            return lambda session, move: requests.end_wait(
                session, move, flow_of(kinds.ending(move.kind, due.kind).name)
            )

        super().__init__(coordination, journal, board, flow_of, filing=filing, **options)
