"""The board of moves: TaskFlow's ZooKeeper board with one node for each flow, named by the flow.

The board holds only what may run now.  A board that is lost is rebuilt from the journal, so posting a flow again must
not make a second node.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable
from typing import Any

import msgspec
import sqlalchemy as sa
from kazoo import exceptions as kazoo_errors
from kazoo.protocol import paths
from taskflow import exceptions, states
from taskflow.conductors.backends import impl_executor
from taskflow.jobs import base
from taskflow.jobs.backends import impl_zookeeper
from taskflow.utils import misc

from droveway.clients.zookeeper import BOARD, Coordination
from droveway.errors import CoordinationLost
from droveway.outages import Once
from droveway.persistence.journal import kinds
from droveway.persistence.journal.tables import Move, MoveFlow
from droveway.wire.values import MOST_BYTES, Name, Number

LOG = logging.getLogger(__name__)


class Posting(msgspec.Struct, frozen=True, kw_only=True):
    """What a job says: nothing that is not in the journal, and no secret."""

    flow: Name
    move: Name
    kind: Name
    version: Number
    digest: str
    urgent: bool
    """Whether it goes before other jobs, as confirm, revert, delete, and every undo do."""
    filed: Name
    """When the flow was filed, as an ISO 8601 date; flows that were filed earlier go first."""


def posting_of(move: Move | sa.Row[Any], flow: MoveFlow | sa.Row[Any]) -> Posting:
    """Make the posting that offers this flow."""
    return Posting(
        flow=flow.uuid,
        move=move.id,
        kind=flow.kind,
        version=flow.version,
        digest=flow.digest,
        urgent=kinds.of(flow.kind).urgent or move.state == "undoing" or _is_to_end(move),
        filed=flow.created_at.isoformat(),
    )


def _is_to_end(move: Move | sa.Row[Any]) -> bool:
    return bool(move.cancel_requested or move.delete_requested)


class _CutOff(logging.Filter):
    """Shortens to one line the traceback that TaskFlow logs when ZooKeeper is lost while it lists the jobs."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, exceptions.JobFailure | exceptions.NotFound):
            # TaskFlow writes the cause into the text of its errors, on a line of its own.
            record.msg, record.args = "%s: %s", (record.getMessage(), " ".join(str(error).split()))
            record.exc_info = record.exc_text = None
        return True


logging.getLogger(impl_executor.__name__).addFilter(_CutOff())


class MoveJob(impl_zookeeper.ZookeeperJob):
    """A job whose node is named by its flow; TaskFlow's own class reads a sequence number from the name."""

    def __init__(self, board: MoveBoard, client: Any, path: str, data: dict[str, Any]) -> None:
        # The parent's own initialiser insists on the number; what it sets besides is set here.
        base.Job.__init__(self, board, data["name"], uuid=data["uuid"], details=data["details"])
        self._client = client
        self._path = paths.normpath(path)
        self._lock_path = self._path + board.LOCK_POSTFIX
        self._created_on = None
        self._node_not_found = False
        self._root = self._path[: -len(paths.basename(self._path))]
        self._sequence = 0
        self._priority = base.JobPriority.NORMAL
        self.posting: Posting = msgspec.convert(data["details"], Posting)
        self.session: int | None = None
        """The ZooKeeper session under which this conductor claimed it."""

    @property
    def state(self) -> Any:
        """Return the job's state by the last listing, for TaskFlow, whose own way takes three calls for each job."""
        return self.board.state_of(self)

    def _order(self) -> tuple[bool, str, str]:
        return (not self.posting.urgent, self.posting.filed, self.uuid)

    def __lt__(self, other: object) -> bool:
        if not isinstance(other, MoveJob):
            return NotImplemented
        return self._order() < other._order()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MoveJob) and self._path == other._path

    def __hash__(self) -> int:
        return hash(self._path)


class MoveBoard(impl_zookeeper.ZookeeperJobBoard):
    """The moves board of one session; ``wakeup`` is called whenever its listing changes."""

    JOB_PREFIX = ""

    def __init__(self, coordination: Coordination) -> None:
        # TaskFlow would ask for ZooKeeper's version by commands that ZooKeeper answers only if it is configured to.
        conf = {"path": BOARD, "check_compatible": False}
        super().__init__("moves", conf, client=coordination.client, emit_notifications=False)
        self._coordination = coordination
        self.wakeup: Callable[[], None] = lambda: None
        self._listing = coordination.listing(BOARD, self._changed)
        # Replaces TaskFlow's own watch, which ends for good when the board is wiped.  This one goes on.
        self._job_watcher = self._listing
        self._locks: frozenset[str] = frozenset()
        """The names of the locks, by the last listing."""
        self._stale = True
        self._refused = Once(LOG)
        self._doubtful: set[str] = set()
        """The locks that this session may hold although nobody here runs the job."""
        self.claimable: Callable[[Posting], bool] = lambda _posting: True
        """Whether this session's conductor is able and willing to run such a job now."""

    def close(self) -> None:
        """End the listing, for TaskFlow.  The session is the caller's and stays."""
        self._listing.stop()
        super().close()

    def iterjobs(self, only_unclaimed: bool = False, ensure_fresh: bool = False) -> Any:
        """Return the jobs in our order, listed anew when something changed, for TaskFlow."""
        self._release_doubtful()
        stale, self._stale = self._stale, False
        return super().iterjobs(only_unclaimed=only_unclaimed, ensure_fresh=ensure_fresh or stale)

    def _force_refresh(self) -> None:
        """List the jobs and their locks, by the call that also sets the watch, for TaskFlow."""
        try:
            names = self._listing.names(fresh=True)
        except CoordinationLost as error:
            raise exceptions.JobFailure("The board could not be listed", cause=error) from error
        self._locks = frozenset(name for name in names if name.endswith(self.LOCK_POSTFIX))
        self._on_job_posting(names, delayed=False)

    def state_of(self, job: MoveJob) -> Any:
        """Return the job's state by the last listing of the board, which may be out of date.

        The board lists its jobs again after each change.  Only a claim shows for sure whether the job is still free.
        """
        if job.path not in self._known_jobs:
            return states.COMPLETE
        return states.CLAIMED if paths.basename(job.lock_path) in self._locks else states.UNCLAIMED

    def _release_doubtful(self) -> None:
        """Release jobs that this session has claimed and no thread runs; otherwise they stay claimed until it ends."""
        with contextlib.suppress(CoordinationLost):
            for path in list(self._doubtful):
                owner = self._coordination.owner(path)
                if owner is not None and owner == self._coordination.session:
                    self._coordination.delete(path)
                    self._stale = True
                self._doubtful.discard(path)

    def _changed(self) -> None:
        self._stale = True
        self.wakeup()

    def post_flow(self, posting: Posting) -> bool:
        """Offer the flow; False when it is on the board already."""
        data = {"uuid": posting.flow, "name": posting.kind, "details": msgspec.to_builtins(posting)}
        return self._coordination.create(self.job_path(posting.flow), json.dumps(data).encode())

    def withdraw(self, flow_uuid: str) -> bool:
        """Take the flow off the board; False when somebody has claimed it, or it is not there."""
        if self._coordination.get(self.job_path(flow_uuid) + self.LOCK_POSTFIX, sync=True) is not None:
            return False
        return self._coordination.delete(self.job_path(flow_uuid))

    def posted(self) -> dict[str, bool]:
        """Return every flow on the board, and whether it is claimed."""
        names = set(self._coordination.children(self.path))
        return {name: name + self.LOCK_POSTFIX in names for name in names if not name.endswith(self.LOCK_POSTFIX)}

    def lock_owner(self, job: MoveJob) -> int | None:
        """Return the session that holds the job's claim right now; None when nobody does."""
        return self._coordination.owner(job.lock_path)

    def job_path(self, flow_uuid: str) -> str:
        """Return the path of the flow's job."""
        return f"{self.path}/{flow_uuid}"

    def claim(self, job: MoveJob, who: str) -> None:
        """Claim the job, for TaskFlow.  Raises UnclaimableJob too for a job that this conductor cannot run."""
        if not self.claimable(job.posting):
            raise exceptions.UnclaimableJob(f"job {job.uuid} is not for this conductor now")
        if job.lock_path in self._doubtful:
            raise exceptions.UnclaimableJob(f"job {job.uuid} may be claimed already")
        if self.state_of(job) == states.CLAIMED:
            raise exceptions.UnclaimableJob(f"job {job.uuid} is claimed already")
        try:
            super().claim(job, who)
        except exceptions.UnclaimableJob:
            raise
        except exceptions.JobFailure as error:
            self._doubtful.add(job.lock_path)
            raise exceptions.UnclaimableJob(f"nobody heard whether job {job.uuid} was claimed") from error
        self._locks |= {paths.basename(job.lock_path)}

    def doubt(self, job: MoveJob) -> None:
        """Note that nobody here runs the job any more, though its claim may still be there."""
        self._doubtful.add(job.lock_path)
        self.wakeup()

    def _job(self, path: str, data: bytes) -> MoveJob:
        if len(data) > MOST_BYTES:
            raise ValueError(f"it has {len(data)} bytes, more than a job may have ({MOST_BYTES})")
        job = MoveJob(self, self._client, path, misc.decode_json(data))
        if not job.uuid == job.posting.flow == paths.basename(path):
            raise ValueError(f"it offers flow {job.posting.flow}, and a job has the name and the uuid of its flow")
        return job

    def _process_child(self, path: str, request: Any, quiet: bool = True) -> None:  # noqa: ARG002 - TaskFlow's signature
        try:
            data, _stat = request.get()
            job = self._job(path, data)
        except (ValueError, TypeError, KeyError, RecursionError, msgspec.ValidationError) as error:
            self._refused.log_once(f"The job at {path[:200]} is refused and removed", error)
            # The keeper offers the flow again, if there is one.  This thread must not wait for an answer.
            self._client.delete_async(path)
            return
        except (kazoo_errors.KazooException, self._client.handler.timeout_exception):
            return  # it went meanwhile, or the next listing asks again
        with self._job_cond:
            self._known_jobs.setdefault(path, job)
            self._job_cond.notify_all()
        self.wakeup()
