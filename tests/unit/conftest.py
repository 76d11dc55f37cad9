from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

_ROWS = Path(__file__).parent.parent / "data" / "nova" / "nova-row-examples.md"


@pytest.fixture(scope="session")
def nova_rows() -> list[tuple[str, dict[str, Any]]]:
    """The rows of a real Nova as (database.table, row); a JSON column stands decoded under the key `(JSON text)`."""
    rows: list[tuple[str, dict[str, Any]]] = []
    for section in re.split(r"^## ", _ROWS.read_text(), flags=re.MULTILINE)[1:]:
        table = section.split()[0]
        rows += [(table, json.loads(block)) for block in re.findall(r"```json\n(.*?)```", section, flags=re.DOTALL)]
    return rows
