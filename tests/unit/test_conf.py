from __future__ import annotations

from pathlib import Path

import pytest
from oslo_config import types

from droveway.conf import settings
from droveway.errors import Refused


def test_a_missing_file_means_the_defaults(tmp_path: Path) -> None:
    conf = settings.load(tmp_path / "droveway.conf")
    assert (conf.scheduler.max_attempts, conf.scheduler.allow_resize_to_same_host) == (3, False)
    assert conf.confirm.deadline == 24 * 3600


def test_a_file_overrides_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "droveway.conf"
    path.write_text("[scheduler]\nmax_attempts = 7\n")
    assert settings.load(path).scheduler.max_attempts == 7


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[scheduler]\nmax_attempts = none\n", "max_attempts"),
        ("[scheduler]\nmax_attempts = 0\n", "max_attempts"),
        ("max_attempts\n", "droveway.conf"),
    ],
)
def test_a_wrong_value_is_named(tmp_path: Path, text: str, named: str) -> None:
    path = tmp_path / "droveway.conf"
    path.write_text(text)
    with pytest.raises(Refused, match=named) as refused:
        settings.load(path)
    assert "\n" not in str(refused.value)


def test_every_option_has_help_and_every_number_bounds() -> None:
    for _group, options in settings.list_opts():
        for option in options:
            assert len(option.help) > 40
            if isinstance(option.type, types.Number):
                assert option.type.min is not None
                assert option.type.max is not None
                assert any(word in option.help for word in ("econds", "How many", "multiplier", "level"))
