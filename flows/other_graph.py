"""Splits the alternates of a move between two graphs: one for hosts of the server's own cell, one for other cells."""

from __future__ import annotations

from typing import Any, Final

from droveway.persistence.journal import kinds

_PAIRS: Final = (
    (kinds.RESIZE.name, kinds.CROSS_CELL_RESIZE.name),
    (kinds.MIGRATE.name, kinds.CROSS_CELL_MIGRATE.name),
)


def across(kind: str) -> str | None:
    """Name the kind of flow for the alternates that a flow of this kind cannot take; None where there is none.

    A flow within a cell has one for the other cells, and a flow between cells has one for the server's own cell.
    """
    return next((other for pair in _PAIRS for one, other in (pair, pair[::-1]) if one == kind), None)


def offered(ranked: list[dict[str, Any]], first: int, *, own: str, crosses: bool) -> dict[str, Any]:
    """Split the alternates, best first, into those of this flow (``chosen``) and those after them (``later``).

    ``first`` is the number of the alternate that the flow begins with; numbers begin with 1.  ``later`` begins with the
    first alternate that needs the other kind of flow.  For a flow that ``crosses`` cells that is one in the server's
    ``own`` cell; for a flow within a cell it is one in another cell.
    """
    ends = next(
        (number for number, each in enumerate(ranked) if number >= first - 1 and (each["cell"] != own) != crosses),
        len(ranked),
    )
    return {"chosen": ranked[:ends], "later": ranked[ends:], "first": first}
