"""Shows on a terminal how far a command is, if it takes longer than a second, and clears the display at its end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Self, TextIO, TypeVar

from droveway.cli.view.columns import span

if TYPE_CHECKING:
    from rich.console import RenderableType

DELAY: Final = 1.0
"""Seconds before anything is shown: most commands have ended by then."""

_POLL: Final = 0.25
_BAR: Final = 24
_SPINNER: Final = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"

Item = TypeVar("Item")


class Progress:
    """Shows what a command does, how many of how many things are done, the time so far and the time left.

    ``out`` is the terminal, or None when nothing is shown. ``said`` returns a further text; a thread calls it again and
    again.
    """

    def __init__(self, out: TextIO | None, what: str, said: Callable[[], str] | None = None) -> None:
        self._out = out
        self._what = what
        self._said = said
        self._done = self._total = 0
        self._began = time.monotonic()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if self._out is not None:
            self._thread = threading.Thread(target=self._show, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_ended: object) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def over(self, items: Iterable[Item]) -> Iterator[Item]:
        """Yield each item, and count it as done when the next one is asked for."""
        known = tuple(items)
        # The total is known at once, since the caller may work for long before it asks for the first item.
        self.tell(0, len(known))
        return self._counted(known)

    def _counted(self, items: Sequence[Item]) -> Iterator[Item]:
        for done, item in enumerate(items):
            self.tell(done, len(items))
            yield item
        self.tell(len(items), len(items))

    def tell(self, done: int, total: int) -> None:
        """Note how many of how many things are done."""
        self._done, self._total = done, total

    def words(self) -> list[str]:
        """Return how many are done, the time so far, and the time left by the pace so far."""
        spent = time.monotonic() - self._began
        told = [f"{self._done} of {self._total}"] if self._total else []
        told.append(span(spent))
        if 0 < self._done < self._total:
            told.append(f"{span(round(spent / self._done * (self._total - self._done)))} left")
        return told

    def _show(self) -> None:
        if self._ended.wait(DELAY):
            return
        # A quick command does not wait for this import.
        from rich.console import Console
        from rich.live import Live

        console = Console(file=self._out, highlight=False, emoji=False, markup=False)
        options: dict[str, Any] = {"auto_refresh": False, "redirect_stdout": False, "redirect_stderr": False}
        with Live(console=console, transient=True, **options) as live:
            for spin in _spins():
                live.update(self._frame(spin), refresh=True)
                if self._ended.wait(_POLL):
                    return

    def _frame(self, spin: str) -> RenderableType:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 1))
        cells: list[Any] = [spin, Text(self._what, no_wrap=True)]
        if self._total:
            cells.append(ProgressBar(total=self._total, completed=self._done, width=_BAR))
        cells.append(Text(", ".join(self.words()), no_wrap=True))
        if said := self._said() if self._said is not None else "":
            cells.append(Text(said, no_wrap=True, overflow="ellipsis"))
        for _ in cells:
            table.add_column(no_wrap=True)
        table.add_row(*cells)
        return table


def _spins() -> Iterator[str]:
    while True:
        yield from _SPINNER
