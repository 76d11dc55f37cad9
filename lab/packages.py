"""Checks that the Python packages which only labs need are installed."""

from __future__ import annotations

import importlib.util
from typing import Final

from droveway.errors import Refused

NEEDED: Final = ("microversion_parse", "os_traits", "placement", "yaml", "zake")


def require() -> None:
    """Raise Refused naming the packages that are missing."""
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        raise Refused(
            f"labs need Python packages that are missing ({', '.join(missing)}); run: pip install 'droveway[lab]'"
        )
