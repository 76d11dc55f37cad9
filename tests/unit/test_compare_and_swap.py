"""Compare-and-swap on a row: nothing is changed that somebody else has changed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest
import sqlalchemy as sa
from sqlalchemy import orm

from droveway.errors import Conflict
from droveway.persistence.compare_and_swap import Columns, OneOf, compare_and_swap


class Base(orm.DeclarativeBase):
    """Of the one table below."""


class Row(Base):
    __tablename__ = "rows"

    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    status: orm.Mapped[str | None]
    host: orm.Mapped[str | None]


@dataclasses.dataclass
class Part(Columns):
    model: ClassVar[Any] = Row

    status: str | None
    host: str | None


Read = Callable[[orm.Session], Any]


def whole(session: orm.Session) -> Row:
    """The row as an entity."""
    return session.get_one(Row, 1)


def part(session: orm.Session) -> Part:
    """The row's columns alone."""
    return Part(*session.connection().execute(Part.selected()).one())


both = pytest.mark.parametrize("read", [whole, part])


@pytest.fixture(name="session")
def fixture_session() -> Iterator[orm.Session]:
    engine = sa.create_engine("sqlite://")
    Base.metadata.create_all(engine)
    with orm.Session(engine) as session:
        session.add(Row(id=1, status="old", host=None))
        session.commit()
        yield session
    engine.dispose()


@both
def test_old_becomes_new_and_a_repeat_changes_nothing(session: orm.Session, read: Read) -> None:
    row = read(session)
    changes: dict[str, tuple[Any, Any]] = {"status": ("old", "new"), "host": (OneOf((None, "h0")), "h1")}
    assert compare_and_swap(session, row, **changes)
    assert (row.status, row.host) == ("new", "h1")
    assert not compare_and_swap(session, row, **changes)


@both
def test_what_somebody_else_wrote_is_named_and_left_alone(session: orm.Session, read: Read) -> None:
    session.execute(sa.update(Row).values(status="theirs"))
    row = read(session)
    with pytest.raises(Conflict, match=r"rows\.status of 1 is 'theirs', but should be 'old' before it becomes 'new'"):
        compare_and_swap(session, row, host=(None, "h1"), status=("old", "new"))
    session.expire_all()
    row = read(session)
    assert (row.status, row.host) == ("theirs", None)


@both
def test_a_write_in_between_is_met_by_the_statement_itself(session: orm.Session, read: Read) -> None:
    row = read(session)
    session.execute(sa.update(Row).values(status="theirs").execution_options(synchronize_session=False))
    with pytest.raises(Conflict, match="changed while it was being written"):
        compare_and_swap(session, row, host=(None, "h1"), status=("old", "new"))
    session.expire_all()
    row = read(session)
    assert (row.status, row.host) == ("theirs", None)


@both
def test_what_was_absent_is_compared_too(session: orm.Session, read: Read) -> None:
    row = read(session)
    session.execute(sa.update(Row).values(host="theirs").execution_options(synchronize_session=False))
    with pytest.raises(Conflict, match="changed while it was being written"):
        compare_and_swap(session, row, host=(None, "h1"))


@both
def test_the_row_in_hand_is_as_it_was_written_and_is_not_written_again(session: orm.Session, read: Read) -> None:
    row = read(session)
    assert compare_and_swap(session, row, status=("old", "new"))
    assert row.status == "new"
    assert not session.dirty
    assert compare_and_swap(session, row, status=("new", "newer"))
    assert session.scalar(sa.select(Row.status)) == "newer"
