"""Where TaskFlow is corrected: each pair shows the stock part failing and ours not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
from sqlalchemy import event
from sqlalchemy.exc import OperationalError
from support.rigs.engine_rig import MIGRATE, Rig, embedded_rig, fault, until
from taskflow import engines, retry, states, task
from taskflow import exceptions as taskflow_errors
from taskflow.atom import Atom
from taskflow.conductors.backends.impl_nonblocking import NonBlockingConductor
from taskflow.jobs.backends.impl_zookeeper import ZookeeperJobBoard
from taskflow.patterns import linear_flow
from taskflow.persistence import models
from taskflow.persistence.backends import impl_memory
from taskflow.types.failure import Failure

from droveway.engines.conductor import fencing
from droveway.engines.conductor.history import History
from droveway.engines.conductor.run import MoveRun, begin_state
from droveway.engines.conductor.taskflow import details
from droveway.engines.conductor.taskflow.atoms import StepTask
from droveway.engines.conductor.taskflow.backend import FlowBackend
from droveway.engines.conductor.taskflow.engine import OPTIONS, MoveEngine
from droveway.flows import registry
from droveway.flows.alternates import Alternates
from droveway.persistence.journal import moves

LOG: list[str] = []
FAIL: list[str] = []


class Plain(task.Task):
    """A task of stock TaskFlow that fails where ``FAIL`` says so, once each."""

    def _mark(self, mark: str) -> None:
        LOG.append(mark)
        if mark in FAIL:
            FAIL.remove(mark)
            raise ValueError(mark)

    def execute(self) -> str:
        self._mark(f"x{self.name}")
        return self.name

    def revert(self, **_facts: Any) -> None:
        self._mark(f"r{self.name}")


@pytest.fixture(autouse=True)
def _clean() -> None:
    LOG.clear()
    FAIL.clear()


@pytest.fixture(name="rig")
def fixture_rig(tmp_path: Path) -> Iterator[Rig]:
    with embedded_rig(tmp_path) as rig:
        yield rig


def line(*names: str) -> linear_flow.Flow:
    return linear_flow.Flow("line").add(*(Plain(name) for name in names))


class Stock:
    """A flow in stock TaskFlow's memory backend."""

    def __init__(self) -> None:
        self.backend = impl_memory.MemoryBackend()
        self.book = models.LogBook("book")
        self.book.add(models.FlowDetail("line", "11111111-1111-4111-8111-111111111111"))
        self.backend.get_connection().save_logbook(self.book)

    def engine(self, flow: linear_flow.Flow) -> Any:
        book = self.backend.get_connection().get_logbook(self.book.uuid)
        return engines.load(flow, flow_detail=next(iter(book)), book=book, backend=self.backend)

    def run(self, flow: linear_flow.Flow) -> str:
        engine = self.engine(flow)
        try:
            engine.run()
        except (ValueError, taskflow_errors.WrappedFailure):
            LOG.append("failed")
        return str(engine.storage.get_flow_state())


class Ours:
    """The same flow in our backend, claimed for a move."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.move = rig.submit()
        self.flow = rig.move(self.move).flow_uuid

    def engine(self, flow: linear_flow.Flow) -> MoveEngine:
        epoch = fencing.claim(self.rig.journal, self.move, "me")
        with self.rig.journal.write() as session:
            begin_state(session, moves.get(session, self.move))
        history = History(move_id=self.move, flow_uuid=str(self.flow), flow="migrate", epoch=epoch, order=[], places={})
        backend = FlowBackend(self.rig.journal, history)
        return MoveEngine(flow, backend.load(), backend, may_be_done=lambda _failed: [])

    def run(self, flow: linear_flow.Flow) -> str:
        engine = self.engine(flow)
        try:
            engine.take_up_failed_undos()
            engine.run()
        except (ValueError, taskflow_errors.WrappedFailure):
            LOG.append("failed")
        return str(engine.storage.get_flow_state())


def failed_attempt() -> models.RetryDetail:
    detail = models.RetryDetail("alternates", "22222222-2222-4222-8222-222222222222")
    detail.put(states.SUCCESS, {"host": "h2"})
    error = ValueError("full")
    detail.last_failures["copy"] = Failure((type(error), error, None))
    return detail


def test_stock_loses_the_value_of_a_failed_attempt_on_reload() -> None:
    reloaded = models.RetryDetail.from_dict(failed_attempt().to_dict())
    assert reloaded.last_results != {"host": "h2"}


def test_ours_keeps_the_value_of_a_failed_attempt_on_reload() -> None:
    reloaded = details.atom_detail(details.atom_row(failed_attempt(), "flow"))
    assert reloaded.last_results == {"host": "h2"}
    assert reloaded.last_failures["copy"].exception_str == "full"


def alternates() -> linear_flow.Flow:
    tried = linear_flow.Flow("tried", retry=retry.ForEach(["d1", "d2"], name="R", provides="dest")).add(Plain("C"))
    return linear_flow.Flow("line").add(Plain("A"), tried)


def test_stock_leaves_what_stands_before_an_exhausted_retry() -> None:
    FAIL.extend(["xC", "xC"])
    assert Stock().run(alternates()) == states.REVERTED
    assert "rA" not in LOG


def test_ours_undoes_what_stands_before_an_exhausted_retry(rig: Rig) -> None:
    assert OPTIONS["defer_reverts"] is True
    FAIL.extend(["xC", "xC"])
    assert Ours(rig).run(alternates()) == states.REVERTED
    assert LOG[-3:] == ["rC", "rA", "failed"]


def test_stock_runs_a_reverted_flow_forward_again() -> None:
    stock = Stock()
    FAIL.append("xB")
    assert stock.run(line("A", "B")) == states.REVERTED
    LOG.clear()
    stock.run(line("A", "B"))
    assert LOG == ["xA", "xB"]


def test_ours_consumes_the_job_of_a_flow_that_ended_and_runs_nothing(rig: Rig) -> None:
    move = rig.submit()
    rig.post(move)
    rig.world.fail("x prepare", RuntimeError("no"))
    first = rig.host()
    job = first.jobs()[0]
    first.board.claim(job, first.conductor.name)
    assert first.conductor._dispatch_job(job)
    first.die()  # before the job was consumed
    assert rig.move(move).state == "failed"
    rig.world.clear()
    second = rig.host()
    assert second.turn() == [True]
    assert rig.world.log == []
    assert second.jobs() == []


def test_stock_keeps_the_book_that_it_read_once(rig: Rig) -> None:
    session = rig.session()
    backend = impl_memory.MemoryBackend()
    book = models.LogBook("book")
    backend.get_connection().save_logbook(book)
    board = ZookeeperJobBoard(
        "stock", {"path": "/stock/jobs"}, client=session.client, persistence=backend, emit_notifications=False
    )
    board.connect()
    job = board.post("job", book)
    before = job.book
    other = backend.get_connection().get_logbook(book.uuid)
    other.add(models.FlowDetail("later", "33333333-3333-4333-8333-333333333333"))
    backend.get_connection().save_logbook(other)
    assert job.book is before
    assert len(job.book) == 0
    board.close()


def test_ours_reads_the_flow_afresh_at_each_claim(rig: Rig) -> None:
    move = rig.submit()
    rig.post(move)
    first, second = rig.host(), rig.host()
    job = first.jobs()[0]  # what the first conductor knows of the job is from before anything ran
    rig.world.hooks["x choose_destinations"] = lambda _ctx: second.conductor.stopping.request()
    assert second.turn() == [False]
    assert rig.world.log == ["x prepare", "x choose_destinations"]
    first.board.claim(job, first.conductor.name)
    assert first.conductor._dispatch_job(job)
    assert rig.world.log.count("x prepare") == rig.world.log.count("x choose_destinations") == 1
    assert rig.move(move).state == "verifying"


def test_stock_calls_a_flow_undone_whose_undo_failed() -> None:
    stock = Stock()
    FAIL.extend(["xC", "rB"])
    assert stock.run(line("A", "B", "C")) == states.FAILURE
    LOG.clear()
    assert stock.run(line("A", "B", "C")) == states.REVERTED
    assert "rA" not in LOG
    assert "rB" not in LOG


def test_ours_takes_the_failed_undo_up_again(rig: Rig) -> None:
    ours = Ours(rig)
    FAIL.extend(["xC", "rB"])
    assert ours.run(line("A", "B", "C")) == states.FAILURE
    LOG.clear()
    assert ours.run(line("A", "B", "C")) == states.REVERTED
    assert LOG == ["rB", "rA", "failed"]
    assert rig.move(ours.move).state == "failed"


def test_stock_trashes_a_job_that_it_cannot_load(rig: Rig) -> None:
    session = rig.session()
    board = ZookeeperJobBoard("stock", {"path": "/stock/jobs"}, client=session.client, emit_notifications=False)
    board.connect()
    board.post("job")
    with pytest.raises(taskflow_errors.NotFound):
        _run_stock(board)
    assert session.children("/stock/jobs") == []
    assert len(session.children("/stock/.trash")) == 1
    board.close()


def _run_stock(board: ZookeeperJobBoard) -> None:
    conductor = NonBlockingConductor("stock", board)
    job = next(iter(board.iterjobs(ensure_fresh=True)))
    board.claim(job, "stock")
    try:
        conductor._dispatch_job(job)
    except taskflow_errors.NotFound:
        conductor._try_finish_job(job, False, trash=True)
        raise


def test_ours_gives_back_a_job_that_it_cannot_load(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    move = rig.submit()
    rig.post(move)
    broken = rig.host()

    def fail(*_facts: object) -> None:
        raise RuntimeError("the cell database is away")

    monkeypatch.setattr(rig.cells, "raise_fence", fail)
    assert broken.turn() == [False]
    monkeypatch.undo()
    assert broken.coordination.children("/droveway/.trash") == []
    with pytest.raises(taskflow_errors.UnclaimableJob):
        broken.turn()  # left alone for a while, so that it is not tried again at once
    assert rig.host().turn() == [True]
    assert rig.move(move).state == "verifying"


def test_stock_lets_a_paused_engine_go_on_after_another_finished() -> None:
    stock = Stock()
    nested: list[str] = []

    class Paused(Plain):
        def execute(self) -> str:
            if not nested:
                nested.append("once")
                stock.run(linear_flow.Flow("line").add(Paused("A"), Plain("B")))
            return super().execute()

    stock.run(linear_flow.Flow("line").add(Paused("A"), Plain("B")))
    assert LOG == ["xA", "xB", "xA", "xB"]


def test_ours_writes_and_starts_nothing_after_another_claim(rig: Rig) -> None:
    move = rig.submit()
    rig.post(move)
    first, second = rig.host(), rig.host()
    seen: list[Any] = []

    def pause(_ctx: object) -> None:
        del rig.world.hooks["x copy"]
        first.die()  # its session expired while it was paused
        second.turn()
        seen.append((list(rig.world.log), rig.history(move), rig.move(move).updated_at))

    rig.world.hooks["x copy"] = pause
    job = first.jobs()[0]
    first.board.claim(job, first.conductor.name)
    assert first.conductor._dispatch_job(job) is False
    log, history, updated = seen[0]
    assert rig.move(move).state == "verifying"
    assert rig.world.log == log
    assert [(row.seq, row.ended_at) for row in rig.history(move)] == [(row.seq, row.ended_at) for row in history]
    assert rig.move(move).updated_at == updated


def test_stock_posts_a_flow_twice_and_hands_out_the_lowest_priority_first(rig: Rig) -> None:
    session = rig.session()
    board = ZookeeperJobBoard("stock", {"path": "/stock/jobs"}, client=session.client, emit_notifications=False)
    board.connect()
    board.post("one", priority="VERY_HIGH")
    board.post("one", priority="VERY_LOW")
    assert [job.priority.value for job in board.iterjobs(ensure_fresh=True)] == ["VERY_LOW", "VERY_HIGH"]
    board.close()


def test_ours_posts_a_flow_once_and_hands_out_the_urgent_and_the_oldest_first(rig: Rig) -> None:
    host = rig.host()
    first, second, third = (rig.submit(server=f"s{number}") for number in range(3))
    for move in (third, second, first, second):
        rig.post(move)
    with rig.journal.write() as session:
        session.connection().exec_driver_sql("UPDATE moves SET cancel_requested = 1 WHERE id = ?", (third,))
    assert host.board.withdraw(str(rig.move(third).flow_uuid))
    until(lambda: len(host.jobs()) == 2)
    rig.post(third)
    until(lambda: len(host.jobs()) == 3)
    assert host.jobs()[0].posting.move == third


def test_stock_commits_a_step_four_times_and_ours_once(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    stock_writes: list[str] = []
    original = impl_memory.Connection.update_atom_details

    def counted(self: Any, atom_detail: Any) -> Any:
        stock_writes.append(atom_detail.name)
        return original(self, atom_detail)

    monkeypatch.setattr(impl_memory.Connection, "update_atom_details", counted)
    Stock().run(line("A", "B"))
    assert len(stock_writes) == 8

    engine = Ours(rig).engine(line("A", "B"))
    commits: list[int] = []
    committed = FlowBackend._flushed

    def counting(self: FlowBackend) -> None:
        commits.append(1)
        committed(self)

    monkeypatch.setattr(FlowBackend, "_flushed", counting)
    engine.run()
    assert len(commits) == 2 + 1  # a step's end is stored with the next one's beginning, the last one's with the flow's


@pytest.mark.parametrize(
    ("in_one", "fence"), [(True, ["UPDATE moves"]), (False, ["SELECT moves", "UPDATE moves"])], ids=["one", "two"]
)
def test_between_two_steps_each_fact_is_written_once(rig: Rig, fence: list[str], *, in_one: bool) -> None:
    """Fence and place of the move, the atom and the run that ended, and the run that begins."""
    engine = Ours(rig).engine(line("A", "B", "C"))
    rig.journal.engine.dialect.update_returning = in_one
    transactions: list[list[str]] = []

    def told(_connection: Any, _cursor: Any, statement: str, *_facts: Any) -> None:
        table = re.search(r"\b(moves|move_steps|atomdetails|flowdetails)\b", statement)
        transactions[-1].append(f"{statement.split(maxsplit=1)[0]} {table and table.group()}")

    event.listen(rig.journal.engine, "begin", lambda _connection: transactions.append([]))
    event.listen(rig.journal.engine, "before_cursor_execute", told)
    engine.run()
    between = [*fence, "INSERT atomdetails", "UPDATE move_steps", "INSERT move_steps"]
    assert transactions[1:-1] == [between] * 2


@pytest.mark.parametrize("kind", registry.kinds())
def test_steps_ask_for_what_taskflow_would_find_in_their_signatures(kind: str) -> None:
    for step in registry.latest(kind).walk():
        made = StepTask(step(None))  # type: ignore[arg-type]
        for method, ignored in ((made.execute, []), (made.revert, ["result", "flow_failures"])):
            options = {"requires": step.needs, "rebind": None, "auto_extract": True, "ignore_list": ignored}
            assert made._build_arg_mapping(method, **options) == Atom._build_arg_mapping(made, method, **options)


def test_a_fault_within_an_alternate_is_known_again_after_a_reload(rig: Rig) -> None:
    """The history that a failed alternate leaves is what the retry decides on after the next claim."""
    move = rig.submit()
    rig.post(move)
    rig.world.fail("x copy", fault())
    first = rig.host()
    rig.world.hooks["r copy"] = lambda _ctx: first.conductor.stopping.request()
    assert first.turn() == [False]
    rig.world.hooks.clear()
    rig.host().turn()
    assert rig.move(move).state == "verifying"
    assert rig.world.held == {"prepare", "claim@h3", "copy@h3", "start_guest", "finish"}
    assert [row.step for row in rig.history(move)].count("alternates") == 2
    assert set(MIGRATE.names()) == {row.step for row in rig.history(move)}


def test_a_journal_that_is_away_between_two_alternates_leaves_the_choice_to_the_next_claim(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    move = rig.submit()
    rig.post(move)
    rig.world.fail("x copy", fault())
    choose = Alternates.takes_next

    def lost(_run: MoveRun) -> NoReturn:
        raise OperationalError("SELECT", None, ConnectionError("the journal is away"))

    def takes_next(alternates: Alternates, *facts: Any, **named: Any) -> bool:
        with monkeypatch.context() as patched:
            patched.setattr(MoveRun, "move", lost)
            return choose(alternates, *facts, **named)

    with monkeypatch.context() as away:
        away.setattr(Alternates, "takes_next", takes_next)
        assert rig.host().turn() == [False]
    assert rig.move(move).state == "running"
    rig.host().turn()
    assert rig.move(move).state == "verifying"
    assert rig.world.held == {"prepare", "claim@h3", "copy@h3", "start_guest", "finish"}
    assert [row.step for row in rig.history(move)].count("alternates") == 2
