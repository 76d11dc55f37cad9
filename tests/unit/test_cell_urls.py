"""Cell mappings that are templates are filled as Nova fills them."""

from __future__ import annotations

import pytest

from droveway.persistence.database import DatabaseUnusable
from droveway.persistence.nova.cell_urls import cell_url

DEFAULT = "mysql+pymysql://nova:se%2Fcret@db1.example:3306/nova?charset=utf8"


@pytest.mark.parametrize(
    ("mapped", "default", "url"),
    [
        ("postgresql://a:b@c/d", None, "postgresql://a:b@c/d"),
        (
            "{scheme}://{username}:{password}@{hostname}:{port}/{path}?{query}",
            DEFAULT,
            DEFAULT,
        ),
        (
            "mysql+pymysql://{username}:{password}@{hostname}/nova_cell0?{query}",
            DEFAULT,
            "mysql+pymysql://nova:se%2Fcret@db1.example/nova_cell0?charset=utf8",
        ),
        ("{scheme}://{hostname}:{port}/x", "postgresql://u@[2001:db8::1]:5432/y", "postgresql://[2001:db8::1]:5432/x"),
        ("{scheme}://{hostname}/{path}", "postgresql://[2001:db8::1]/y", "postgresql://[2001:db8::1]/y"),
    ],
)
def test_a_mapping_is_a_url_or_filled(mapped: str, default: str | None, url: str) -> None:
    assert cell_url(mapped, default, "cell1") == url


@pytest.mark.parametrize(
    ("mapped", "default", "said"),
    [
        ("{scheme}://{hostname}/x", None, r"cell cell1 is a template, and \[database\] connection"),
        ("{scheme}://{hostname.__class__}/x", DEFAULT, "the template of cell cell1 cannot be filled"),
        ("{scheme}://{host}/x", DEFAULT, "it may name scheme, username"),
        ("{scheme}://{/x", DEFAULT, "the template of cell cell1 cannot be filled"),
    ],
)
def test_what_cannot_be_filled_is_named_without_a_secret(mapped: str, default: str | None, said: str) -> None:
    with pytest.raises(DatabaseUnusable, match=said) as told:
        cell_url(mapped, default, "cell1")
    assert "cret" not in str(told.value)
