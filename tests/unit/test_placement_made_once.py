"""What the embedded Placement makes anew for every request is made once in a test process, and is the same."""

from __future__ import annotations

import jsonschema
import pytest
import sqlalchemy as sa

TABLE = sa.Table("named_once", sa.MetaData(), sa.Column("word", sa.String(8)))


def test_a_schema_is_checked_once_and_a_body_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    checked = []
    monkeypatch.setattr(
        "support.placement_made_once._check_schema", lambda schema, *_rest, **_options: checked.append(schema)
    )
    schema, same = {"type": "string"}, {"type": "string"}
    for _ in range(3):
        jsonschema.validate("word", schema)
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(1, schema)
    jsonschema.validate("word", same)
    assert checked == [schema, same]
    assert checked[1] is same


def test_a_schema_that_is_wrong_is_refused_each_time() -> None:
    wrong = {"type": 1}
    for _ in range(2):
        with pytest.raises(jsonschema.SchemaError):
            jsonschema.validate("word", wrong)


def test_a_table_has_one_alias_of_a_name() -> None:
    first = sa.alias(TABLE, name="a")
    assert sa.alias(TABLE, name="a") is first
    assert sa.alias(TABLE, name="b") is not first
    assert sa.alias(TABLE) is not sa.alias(TABLE)
    query = sa.select(first.c.word, sa.alias(TABLE, name="b").c.word)
    assert str(query).splitlines()[1].split() == ["FROM", "named_once", "AS", "a,", "named_once", "AS", "b"]
