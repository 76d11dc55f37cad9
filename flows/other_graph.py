"""Which alternates of a move take the graph of another kind: those in the server's own cell, or those in others."""

from __future__ import annotations

from typing import Any, Final

from droveway.persistence.journal import kinds

_PAIRS: Final = (
    (kinds.RESIZE.name, kinds.CROSS_CELL_RESIZE.name),
    (kinds.MIGRATE.name, kinds.CROSS_CELL_MIGRATE.name),
)


def across(kind: str) -> str | None:
    """The kind of the flow that takes the alternates which one of this kind cannot: in other cells, or in the own."""
    return next((other for pair in _PAIRS for one, other in (pair, pair[::-1]) if one == kind), None)


def offered(ranked: list[dict[str, Any]], first: int, *, own: str, crosses: bool) -> dict[str, Any]:
    """The alternates as a flow is given them, of which it begins with the ``first``.

    ``chosen`` ends before the first that takes a flow of the other kind (``later``): of a flow that ``crosses``, the
    next one in the server's ``own`` cell, else the next one in another.
    """
    ends = next(
        (number for number, each in enumerate(ranked) if number >= first - 1 and (each["cell"] != own) != crosses),
        len(ranked),
    )
    return {"chosen": ranked[:ends], "later": ranked[ends:], "first": first}
