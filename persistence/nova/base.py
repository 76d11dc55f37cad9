"""What the models of Nova's databases share: base classes, column types, and the columns that most tables have."""

from datetime import datetime
from typing import Annotated, Any

from sqlalchemy import BigInteger, Connection, Float, Integer, MetaData, String, Text, event
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from droveway.persistence.times import utcnow

# MySQL turns TEXT(16777215) into MEDIUMTEXT by itself, so its dialect need not be imported for that type.
_MEDIUM_TEXT = Text().with_variant(Text(16777215), "mysql", "mariadb")
# SQLite numbers a row by itself only when its key is INTEGER.
_BIG_INTEGER = BigInteger().with_variant(Integer(), "sqlite")
_KEY_PREFIX = 100

String255 = Annotated[str, mapped_column(String(255))]
Uuid = Annotated[str, mapped_column(String(36))]
LongString = Annotated[str, mapped_column(Text())]
MediumText = Annotated[str, mapped_column(_MEDIUM_TEXT)]
Real = Annotated[float, mapped_column(Float())]
BigInt = Annotated[int, mapped_column(BigInteger())]
BigKey = Annotated[int, mapped_column(_BIG_INTEGER, primary_key=True)]


class ApiBase(DeclarativeBase):
    """The base class of the tables of Nova's API database."""


class CellBase(DeclarativeBase):
    """The base class of the tables of a Nova cell database."""


class Timestamps:
    """When a row was made and last changed: UTC, naive, whole seconds, as in Nova's MySQL DATETIME columns."""

    created_at: Mapped[datetime | None] = mapped_column(default=utcnow)
    updated_at: Mapped[datetime | None] = mapped_column(onupdate=utcnow)


class SoftDelete:
    """The columns of Nova's soft delete: `deleted` is 0 in a live row, and the row's own id in a deleted one."""

    deleted_at: Mapped[datetime | None]
    deleted: Mapped[int | None] = mapped_column(default=0)


@event.listens_for(CellBase.metadata, "before_create")
def _shorten_index_keys(target: MetaData, connection: Connection, **_options: Any) -> None:
    """Shorten the keys of some indexes on MySQL, as Nova does: the whole host names are longer than InnoDB allows.

    The models do not set this, because every command would then import the MySQL dialect.
    """
    name = connection.dialect.name
    if name not in ("mysql", "mariadb"):
        return
    columns = ("source_compute", "dest_compute", "source_node", "dest_node")
    for index in target.tables["migrations"].indexes:
        lengths = {column.name: _KEY_PREFIX for column in index.columns if column.name in columns}
        if lengths:
            index.dialect_options[name]["length"] = lengths
