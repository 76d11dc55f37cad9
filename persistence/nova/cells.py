"""Access to the cell databases, each write behind the fence of a move's epoch.

The fence is a row of Nova's own `instance_system_metadata`, key ``droveway_epoch``: written when a flow is claimed,
locked and compared in every transaction, removed when the flow has ended.  Missing means fenced.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

import sqlalchemy as sa
from sqlalchemy import orm

from droveway.errors import Conflict, Fenced, NotFound, ServerDeleted
from droveway.persistence.database import Database
from droveway.persistence.nova import catalog, declared, servers
from droveway.persistence.nova import cell as models
from droveway.persistence.times import utcnow

FENCE_KEY = "droveway_epoch"
MOVE_KEY = "droveway_move"
"""Names the move that made a copy of the server's rows in another cell, while a flow of it runs."""
GOING: Final = " goes"
"""Ends that mark where the copy's removal has begun: it then stands until the last row is gone."""

_OF_SERVER: Final = (
    models.InstanceSystemMetadata.instance_uuid == sa.bindparam("server"),
    models.InstanceSystemMetadata.key == FENCE_KEY,
)
_STANDS: Final = (*_OF_SERVER, models.InstanceSystemMetadata.deleted == 0)
_FENCE_VALUE: Final = sa.select(models.InstanceSystemMetadata.value).where(*_STANDS).with_for_update()
_SERVER: Final = sa.select(models.Instance.id).where(models.Instance.uuid == sa.bindparam("server")).with_for_update()
_ADD_FENCE: Final = sa.insert(models.InstanceSystemMetadata)
_CHANGE_FENCE: Final = (
    sa.update(models.InstanceSystemMetadata)
    .where(*_STANDS)
    .values(value=sa.bindparam("epoch"), updated_at=sa.bindparam("now"))
)
_DROP_MARK: Final = sa.delete(models.InstanceSystemMetadata).where(
    models.InstanceSystemMetadata.instance_uuid == sa.bindparam("server"),
    models.InstanceSystemMetadata.key == MOVE_KEY,
    models.InstanceSystemMetadata.value.not_like(f"%{GOING}"),
)
_DROP_FENCE: Final = sa.delete(models.InstanceSystemMetadata).where(
    *_OF_SERVER,
    sa.or_(models.InstanceSystemMetadata.value == sa.bindparam("epoch"), models.InstanceSystemMetadata.deleted != 0),
)


class Cells:
    """The cell databases by cell name."""

    def __init__(self, databases: Mapping[str, Database]) -> None:
        self._databases = dict(databases)

    def names(self) -> list[str]:
        """Every cell, in order."""
        return sorted(self._databases)

    def database(self, cell: str) -> Database:
        """The cell's database; raises `droveway.errors.NotFound`."""
        if cell not in self._databases:
            raise NotFound(f"cell {cell} is unknown: droveway cell list shows the cells")
        return self._databases[cell]

    def is_declared_down(self, cell: str, host: str) -> bool:
        """Whether a person made sure that the cell's host is off."""
        with self.database(cell).read() as session:
            return declared.is_down(session, host)

    @contextlib.contextmanager
    def transaction(self, cell: str, server: str, epoch: int, *, other: bool = False) -> Iterator[orm.Session]:
        """One fenced transaction; raises `droveway.errors.Fenced` unless the fence row names exactly this epoch.

        Raises ServerDeleted when the server's rows are gone, and the fence with them.  ``other``: the server is not
        mapped to this cell, so that a copy which is missing tells nothing of a delete; it raises Conflict.
        """
        with self.database(cell).write() as session:
            present = session.connection().scalar(_FENCE_VALUE, {"server": server})
            if present is None and servers.is_gone(session, server):
                if other and session.connection().execute(_SERVER, {"server": server}).first() is None:
                    raise Conflict(
                        f"cell {cell} has no copy of server {server} any more: was its database put back from a copy?"
                    )
                raise ServerDeleted(f"server {server} was deleted meanwhile")
            if present != str(epoch):
                raise Fenced(f"epoch {epoch} no longer stands for server {server} in cell {cell}")
            yield session

    def raise_fence(self, cell: str, server: str, epoch: int) -> None:
        """Let only ``epoch`` write from now on; raises Fenced when a higher one stands already.

        A cell that has no row of the server has nothing that could be fenced.
        """
        of = {"server": server}
        with self.database(cell).begin() as connection:
            present = connection.execute(_FENCE_VALUE, of).first()
            if present is None:
                # Of a row that is not there nothing is locked: two claims could each insert one, and one would stay.
                if connection.execute(_SERVER, of).first() is None:
                    return
                present = connection.execute(_FENCE_VALUE, of).first()
            if present is None:
                row = {"key": FENCE_KEY, "value": str(epoch), "instance_uuid": server, "deleted": 0}
                connection.execute(_ADD_FENCE, row)
            elif int(present.value or 0) > epoch:
                raise Fenced(f"a newer epoch stands for server {server} in cell {cell}")
            elif present.value != str(epoch):
                connection.execute(_CHANGE_FENCE, {**of, "epoch": str(epoch), "now": utcnow()})

    def drop_fence(self, cell: str, server: str, epoch: int) -> None:
        """Remove the fence row if it is this epoch's: from then on nobody may write.

        One that was soft-deleted with its server goes too, and so does the mark of the move that copied the rows, but
        not where their removal has begun: what is left of them tells no more what a user removed.
        """
        with self.database(cell).begin() as connection:
            if connection.execute(_DROP_FENCE, {"server": server, "epoch": str(epoch)}).rowcount:
                connection.execute(_DROP_MARK, {"server": server})

    def has(self, cell: str, server: str) -> bool:
        """Whether the cell has rows of the server, hidden or soft-deleted ones too."""
        with self.database(cell).begin() as connection:
            return connection.execute(_SERVER, {"server": server}).first() is not None

    def of_claim(self, server: str, epoch: int, unfenced: Collection[str], down: Collection[str] = ()) -> Cells:
        """Return the same for one claim, which fences the cells that were away before it uses one of them.

        A cell that is declared ``down`` is away to it, whether or not its database answers.
        """
        return _ClaimedCells(self._databases, server, epoch, unfenced, down)

    def is_down(self, cell: str) -> bool:  # noqa: ARG002 - only a claim knows it
        """Whether a person declared the cell down before the claim."""
        return False

    def away(self, cells: Iterable[str]) -> list[str]:
        """Name those of the cells whose databases do not answer now."""
        asked = {cell: self._databases[cell] for cell in cells}
        return sorted(asked.keys() - catalog.answering(asked).keys())

    def close(self) -> None:
        """Give back every connection."""
        for database in self._databases.values():
            database.close()


class _ClaimedCells(Cells):
    """The cells as one claim uses them: a fence that it could not raise when it began comes before all else."""

    def __init__(
        self,
        databases: Mapping[str, Database],
        server: str,
        epoch: int,
        unfenced: Collection[str],
        down: Collection[str],
    ) -> None:
        super().__init__(databases)
        self._down = frozenset(down)
        self._server = server
        self._epoch = epoch
        self._unfenced = set(unfenced)

    def database(self, cell: str) -> Database:
        """The cell's database, behind the claim's fence; raises Fenced where a newer one stands."""
        if cell in self._down:
            raise sa.exc.OperationalError(None, None, Exception(f"cell {cell} is declared down"))
        if cell in self._unfenced:
            Cells(self._databases).raise_fence(cell, self._server, self._epoch)
            self._unfenced.discard(cell)
        return super().database(cell)

    def is_down(self, cell: str) -> bool:
        """Whether a person declared the cell down before the claim."""
        return cell in self._down

    def is_declared_down(self, cell: str, host: str) -> bool:
        """Whether a person made sure that the cell's host is off, or that the whole cell is gone."""
        return self.is_down(cell) or super().is_declared_down(cell, host)

    def away(self, cells: Iterable[str]) -> list[str]:
        """Name those of the cells whose databases do not answer, or are not to be asked."""
        named = {*cells}
        return sorted({*super().away(named - self._down)} | (named & self._down))
