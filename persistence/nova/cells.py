"""Access to the cell databases; each write is checked against the fence of the server.

The fence is a row of Nova's own `instance_system_metadata` with the key ``droveway_epoch``.  Its value is the epoch of
the claim that may write.  A conductor writes it when it claims a flow, and removes it when the flow has ended.  Each
transaction locks and compares it.  Where the row is missing, nobody may write.
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
"""The key of the mark: it names the move that made this copy of the server's rows, while a flow of the move runs."""
GOING: Final = " goes"
"""The suffix of a mark's value that says that the removal of the copy has begun.

Such a mark stays until the copy's last row is gone.
"""

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
    """Gives access to the cell databases by the names of their cells."""

    def __init__(self, databases: Mapping[str, Database]) -> None:
        self._databases = databases

    def names(self) -> list[str]:
        """Return the names of all cells, sorted."""
        return sorted(self._databases)

    def database(self, cell: str) -> Database:
        """Return the cell's database; raise `droveway.errors.NotFound` when the cell is unknown."""
        try:
            return self._databases[cell]
        except KeyError:
            raise NotFound(f"cell {cell} is unknown: droveway cell list shows the cells") from None

    def is_declared_down(self, cell: str, host: str) -> bool:
        """Tell whether a person declared the cell's host down, having made sure that it is off."""
        with self.database(cell).read() as session:
            return declared.is_down(session, host)

    @contextlib.contextmanager
    def transaction(self, cell: str, server: str, epoch: int, *, other: bool = False) -> Iterator[orm.Session]:
        """Open a fenced transaction; raise `droveway.errors.Fenced` unless the fence names exactly this epoch.

        Raises `droveway.errors.ServerDeleted` when the server's rows are gone, and the fence with them.

        ``other`` says that the server is mapped to another cell.  Then a missing copy does not mean that the server was
        deleted, and raises `droveway.errors.Conflict`.
        """
        with self.database(cell).write() as session:
            present = session.connection().scalar(_FENCE_VALUE, {"server": server})
            if present is None and servers.is_gone(session, server):
                if other and session.connection().execute(_SERVER, {"server": server}).first() is None:
                    raise Conflict(
                        f"cell {cell} has no copy of server {server} any more: was its database restored from a backup?"
                    )
                raise ServerDeleted(f"server {server} was deleted meanwhile")
            if present != str(epoch):
                raise Fenced(f"epoch {epoch} no longer stands for server {server} in cell {cell}")
            yield session

    def raise_fence(self, cell: str, server: str, epoch: int) -> None:
        """Let only ``epoch`` write from now on; raise `droveway.errors.Fenced` when the fence names a higher one.

        Nothing happens when the cell has no row of the server: there is nothing to protect.
        """
        of = {"server": server}
        with self.database(cell).begin() as connection:
            present = connection.execute(_FENCE_VALUE, of).first()
            if present is None:
                # A missing fence cannot be locked, and two claims might each insert one.  So the server's row is
                # locked first, and the fence is read again.
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
        """Remove the fence if it is this epoch's; from then on nobody may write.

        A fence that was soft-deleted together with its server is removed too.  The mark is removed with the fence,
        unless the removal of the copy has begun.  Such a mark must stay: it says that rows are missing because the copy
        is being removed, and not because a user deleted them.
        """
        with self.database(cell).begin() as connection:
            if connection.execute(_DROP_FENCE, {"server": server, "epoch": str(epoch)}).rowcount:
                connection.execute(_DROP_MARK, {"server": server})

    def has(self, cell: str, server: str) -> bool:
        """Tell whether the cell has the server's own row; a hidden or soft-deleted one counts."""
        with self.database(cell).begin() as connection:
            return connection.execute(_SERVER, {"server": server}).first() is not None

    def of_claim(self, server: str, epoch: int, unfenced: Collection[str], down: Collection[str] = ()) -> Cells:
        """Return these cells for the use of one claim.

        ``unfenced`` are the cells whose databases were away when the claim raised its fences.  There the fence is
        raised before the database is used.  A cell that is declared ``down`` counts as away, even if its database
        answers.
        """
        return _ClaimedCells(self._databases, server, epoch, unfenced, down)

    def is_down(self, cell: str) -> bool:  # noqa: ARG002 - only a claim knows it
        """Tell whether a person declared the cell down before the claim; False here, where there is no claim."""
        return False

    def away(self, cells: Iterable[str]) -> list[str]:
        """Return the names of the cells whose databases do not answer now."""
        asked = {cell: self._databases[cell] for cell in cells}
        return sorted(asked.keys() - catalog.answering(asked).keys())

    def close(self) -> None:
        """Give back every connection."""
        for database in self._databases.values():
            database.close()


class _ClaimedCells(Cells):
    """Gives access to the cells for one claim: see `Cells.of_claim`."""

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
        """Return the cell's database, after the claim's fence was raised there.

        Raises `droveway.errors.Fenced` when a newer fence is there, and an OperationalError, as for a database that is
        away, when the cell is declared down.
        """
        if cell in self._down:
            raise sa.exc.OperationalError(None, None, Exception(f"cell {cell} is declared down"))
        if cell in self._unfenced:
            Cells(self._databases).raise_fence(cell, self._server, self._epoch)
            self._unfenced.discard(cell)
        return super().database(cell)

    def is_down(self, cell: str) -> bool:
        """Tell whether a person declared the cell down before the claim."""
        return cell in self._down

    def is_declared_down(self, cell: str, host: str) -> bool:
        """Tell whether a person declared the cell's host down, or the whole cell."""
        return self.is_down(cell) or super().is_declared_down(cell, host)

    def away(self, cells: Iterable[str]) -> list[str]:
        """Return the names of the cells whose databases do not answer, and of the cells that are declared down."""
        named = {*cells}
        return sorted({*super().away(named - self._down)} | (named & self._down))
