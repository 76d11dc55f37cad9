"""Keeps a worker from acting for a conductor that has lost its claim."""

from __future__ import annotations

from droveway.clients.zookeeper import Coordination, command_path, epoch_in, epoch_path
from droveway.errors import CoordinationLost, Fenced, Refused
from droveway.wire import codec, commands
from droveway.workers.journal import WorkerJournal


def standing_epoch(coordination: Coordination, move: str) -> int | None:
    """Return the move's epoch as ZooKeeper has it now; None when the move has ended or was never claimed."""
    found = coordination.get(epoch_path(move), sync=True)
    return None if found is None else epoch_in(found[0])


class Fence:
    """Checks that one command has the newest epoch of its move, and that a conductor still asks for the command."""

    def __init__(self, coordination: Coordination, journal: WorkerJournal, command: commands.Command) -> None:
        self._coordination = coordination
        self._journal = journal
        self._command = command
        self.epoch = command.epoch
        """The command's epoch; a conductor that takes the move over may raise it while the action runs."""

    def check(self) -> None:
        """Return if the command is still there with the epoch that stands, and the ZooKeeper session is alive.

        Otherwise raises `droveway.errors.Fenced`, or CoordinationLost when ZooKeeper cannot be asked.
        """
        if not self._coordination.live():
            raise CoordinationLost(f"the ZooKeeper session of host {self._command.host} may have expired")
        command = command_path(self._command.host, self._command.key)
        mirror, found = self._coordination.get_each([epoch_path(self._command.move), command], sync=True)
        standing = None if mirror is None else epoch_in(mirror[0])
        if standing is None:
            raise Fenced(f"move {self._command.move} has ended or is not claimed: nothing more is done for it")
        if standing != self.epoch:
            # The conductor that raised the epoch may have stamped the command with it just now.
            found = self._coordination.get(command, sync=True)
        self._require_command(found, standing)
        if not self._journal.raise_epoch(self._command.move, self.epoch):
            raise Fenced(f"a higher epoch than {self.epoch} was seen for move {self._command.move}")

    def _require_command(self, found: tuple[bytes, int] | None, standing: int) -> None:
        """Raise Fenced unless the command is still there and carries the epoch that stands.

        The epoch alone proves too little.  When a conductor goes on with the move without this host, it deletes the
        command, and the move's epoch stays the same.  When another conductor has taken the move over while the action
        ran, it may have stamped the command with its higher epoch.  Then the action goes on under that epoch.
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
