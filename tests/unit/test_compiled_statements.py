"""The engines of a test process share what SQLAlchemy has compiled, as far as their dialects are alike."""

from __future__ import annotations

import json

import sqlalchemy as sa
from sqlalchemy import event

TABLE = sa.Table("shared_words", sa.MetaData(), sa.Column("word", sa.JSON))


def engine(**words: object) -> sa.Engine:
    made = sa.create_engine("sqlite://", **words)
    TABLE.metadata.create_all(made)
    return made


def is_compiled_anew(used: sa.Engine) -> bool:
    found = []

    def look(_conn: object, _cursor: object, _text: str, _parameters: object, context: object, _many: bool) -> None:
        found.append(context.cache_hit.name)  # type: ignore[attr-defined]

    event.listen(used, "before_cursor_execute", look)
    with used.begin() as connection:
        connection.execute(sa.select(TABLE.c.word).where(TABLE.c.word.is_not(None)))
    return found == ["CACHE_MISS"]


def test_a_statement_is_compiled_once_for_all_engines_that_are_alike() -> None:
    assert is_compiled_anew(engine())
    assert not is_compiled_anew(engine())
    assert is_compiled_anew(engine(json_serializer=lambda value: json.dumps(value, indent=1)))
