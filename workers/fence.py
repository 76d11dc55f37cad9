"""What keeps a worker from acting for a conductor that has lost its claim."""

from __future__ import annotations

from droveway.clients.zookeeper import Coordination, command_path, epoch_in, epoch_path
from droveway.errors import CoordinationLost, Fenced, Refused
from droveway.wire import codec, commands
from droveway.workers.journal import WorkerJournal


def standing_epoch(coordination: Coordination, move: str) -> int | None:
    """The move's epoch as it stands now; None when the move has ended or was never claimed."""
    found = coordination.get(epoch_path(move), sync=True)
    return None if found is None else epoch_in(found[0])


class Fence:
    """Compares the epoch of one command with the one that stands, and looks whether it is still asked for."""

    def __init__(self, coordination: Coordination, journal: WorkerJournal, command: commands.Command) -> None:
        self._coordination = coordination
        self._journal = journal
        self._command = command
        self.epoch = command.epoch
        """The epoch that the command has now: a conductor that adopts it raises it."""

    def check(self) -> None:
        """Return while the command stands, its epoch too, and the session lives.

        Raises `droveway.errors.Fenced` on any difference, and CoordinationLost when nobody can say.
        """
        if not self._coordination.live():
            raise CoordinationLost(f"the session of host {self._command.host} is not known to be alive")
        command = command_path(self._command.host, self._command.key)
        mirror, found = self._coordination.get_each([epoch_path(self._command.move), command], sync=True)
        standing = None if mirror is None else epoch_in(mirror[0])
        if standing is None:
            raise Fenced(f"move {self._command.move} has ended or is not claimed: nothing more is done for it")
        if standing != self.epoch:
            # Read anew: who raised the epoch may have put it on the command since.
            found = self._coordination.get(command, sync=True)
        self._require_command(found, standing)
        if not self._journal.raise_epoch(self._command.move, self.epoch):
            raise Fenced(f"a higher epoch than {self.epoch} was seen for move {self._command.move}")

    def _require_command(self, found: tuple[bytes, int] | None, standing: int) -> None:
        """Of a claim that goes on without this host the epoch stands, but it has taken its command back.

        One that raised the epoch may have put it on the command while the action ran.
        """
        if found is None:
            raise Fenced(f"{self._command.key} was taken back: nothing more is done for it")
        try:
            stamped = codec.decode_command(found[0]).epoch
        except Refused as error:
            raise Fenced(str(error)) from None
        if stamped != standing:
            raise Fenced(f"move {self._command.move} is at epoch {standing}, the command at {stamped}")
        self.epoch = stamped
