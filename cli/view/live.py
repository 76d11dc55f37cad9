"""Draws the live view of a move on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Self, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from droveway.cli.view.columns import span
from droveway.cli.view.marks import DONE, FAILED
from droveway.cli.view.picture import Picture, Row

_AHEAD: Final = 3
"""How many of the next steps are named."""

_WIDEST_BAR: Final = 30
_NARROWEST_BAR: Final = 10
_STYLES: Final = {DONE: "green", FAILED: "red"}
_SHOW_CURSOR: Final = "\x1b[?25h\n"


class Screen:
    """Shows a picture in place of the one before; the last one stays."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        console = Console(file=out, highlight=False, emoji=False, markup=False)
        self._live = Live(console=console, auto_refresh=False)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_ended: object) -> None:
        self._live.stop()

    def update(self, picture: Picture, note: str = "") -> None:
        """Show the picture, with a note below."""
        self._live.update(frame(picture, self._live.console.width, note), refresh=True)

    def abandon(self) -> None:
        """Leave the terminal usable; the process ends at once."""
        self._out.write(_SHOW_CURSOR)
        self._out.flush()


def frame(picture: Picture, width: int, note: str = "") -> RenderableType:
    """Return the view: a title, the finished steps, the running step with its bytes, and the next steps."""
    parts: list[RenderableType] = [Text(picture.title, no_wrap=True, overflow="ellipsis")]
    parts.append(_rows(picture.rows()))
    if bytes_told := picture.progress():
        parts.append(_bytes(picture, bytes_told, width))
    if len(picture.ahead) > _AHEAD + 1:
        named = [*picture.ahead[:_AHEAD], f"… {len(picture.ahead) - _AHEAD - 1} more", picture.ahead[-1]]
    else:
        named = picture.ahead
    parts += [Text(f"    {name}", style="dim", no_wrap=True) for name in named]
    if note:
        parts.append(Text(note, style="yellow"))
    return Group(*parts)


def _rows(rows: Sequence[Row]) -> RenderableType:
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column()
    table.add_column(no_wrap=True, justify="right")
    for row in rows:
        table.add_row(Text(f"  {row.mark}", style=_STYLES.get(row.mark, "yellow")), row.text, f" {span(row.seconds)}")
    return table


def _bytes(picture: Picture, told: list[str], width: int) -> RenderableType:
    words = sum(map(len, told)) + 3 * len(told) + 4
    bar = ProgressBar(
        total=float(picture.total),
        completed=float(picture.done),
        width=max(_NARROWEST_BAR, min(_WIDEST_BAR, width - words)),
    )
    table = Table.grid(padding=(0, 2, 0, 0))
    cells: list[Any] = ["   ", told[0], bar, *told[1:]]
    for _ in cells:
        table.add_column(no_wrap=True)
    table.add_row(*cells)
    return table
