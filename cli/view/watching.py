"""Follows a move: with a live view on a terminal, with one line for each change elsewhere."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Final, Protocol, TextIO

from droveway.cli.output import INTERRUPTED
from droveway.cli.view.marks import OWED, is_terminal
from droveway.cli.view.picture import Picture, Watcher, is_owed, name_of
from droveway.printable import SHORT, printable

if TYPE_CHECKING:
    from droveway.engines.site.site import Site
    from droveway.persistence.journal.tables import Move, MoveStep

POLL: Final = 0.1
"""Seconds between two reads of the journal."""

NOBODY: Final = "nobody runs this lab now; carry the move on with  droveway move resume"
STOPPING: Final = "stopping what runs here, to be carried on later; Ctrl-C again ends this command at once"

_TENTHS: Final = 10


class View(Protocol):
    """Shows pictures of a move."""

    def update(self, picture: Picture, note: str = "") -> None:
        """Show what is new in the picture."""

    def abandon(self) -> None:
        """Leave the terminal usable: the process ends at once."""


class Lines:
    """Writes a line for each step that begins or ends, each tenth of its bytes, and each note."""

    def __init__(self, out: TextIO, behind: Picture | None = None) -> None:
        """Write to ``out``; the steps in the picture ``behind`` were written before and are left out."""
        self._out = out
        self._said: set[object] = set(map(_line, behind.steps) if behind is not None else ())

    def update(self, picture: Picture, note: str = "") -> None:
        """Write the lines that were not written before."""
        for step in picture.steps:
            self._say(_line(step))
        if told := picture.progress():
            # Each tenth is written once.
            running, tenth = picture.steps[-1], _TENTHS * picture.done // picture.total
            self._say(f"  ▸ {running.step}: {', '.join(told)}", key=(running.seq, tenth))
        if note:
            self._say(note)
        self._out.flush()

    def abandon(self) -> None:
        """Do nothing: lines leave the terminal as it is."""

    def _say(self, line: str, key: object = None) -> None:
        if (key or line) not in self._said:
            self._said.add(key or line)
            self._out.write(f"{line}\n")


def wait(
    site: Site, move_ids: Iterable[str], timeout: float | None, see: Callable[[Picture], object] = lambda _: None
) -> Iterator[Move]:
    """Yield each move once it goes on no further by itself; end after ``timeout`` seconds, though some go on.

    ``see`` is called with every picture of a move that goes on.
    """
    waiting = [Watcher(site, move_id) for move_id in move_ids]
    until = None if timeout is None else time.monotonic() + timeout
    with _between_reads() as raise_pressed:
        while waiting:
            for watcher in list(waiting):
                raise_pressed()
                picture = watcher.read()
                if picture.rests:
                    waiting.remove(watcher)
                    yield picture.move
                else:
                    see(picture)
            if until is not None and time.monotonic() >= until:
                return
            if waiting:
                time.sleep(POLL)


def follow(site: Site, name: str, out: TextIO) -> Move:
    """Show the move until it rests and return it; Ctrl-C ends the showing, never the move."""
    from droveway.engines.operations import move_requests

    move_id = move_requests.find_move(site, name).id
    watcher = Watcher(site, move_id)
    try:
        with _screen(out) as view, _between_reads() as raise_pressed:
            while True:
                raise_pressed()
                picture = watcher.read()
                view.update(picture, "" if picture.is_run else NOBODY)
                if picture.rests:
                    return picture.move
                time.sleep(POLL)
    except KeyboardInterrupt:
        out.write(f"{left(site, move_id)}\n")
        raise


@contextlib.contextmanager
def carrying(site: Site, move_id: str, out: TextIO, *, lines: bool) -> Iterator[None]:
    """Show the move's progress while the block runs it: live on a terminal, elsewhere in ``lines`` if they are wanted.

    Ctrl-C parks the move if this command runs it, prints how the move stands, and is raised again.
    """
    try:
        if not (lines or is_terminal(out)):
            with stoppable(lambda: print(STOPPING, file=out, flush=True)):
                yield
            return
        watcher = Watcher(site, move_id)
        with _screen(out, watcher.read()) as view, _shown(watcher, view) as stopping, stoppable(stopping, view.abandon):
            yield
    except KeyboardInterrupt:
        out.write(f"{left(site, move_id)}\n")
        raise


@contextlib.contextmanager
def _between_reads() -> Iterator[Callable[[], None]]:
    """Hold a first Ctrl-C back, and raise it when the caller calls the function that is yielded.

    A second one is raised at once. A KeyboardInterrupt in the middle of a read could be lost, since Python drops
    exceptions that are raised while it destroys an object.
    """
    pressed = threading.Event()

    def press(_number: int, _frame: FrameType | None) -> None:
        if pressed.is_set():
            raise KeyboardInterrupt
        pressed.set()

    def raise_pressed() -> None:
        if pressed.is_set():
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, press)
    try:
        yield raise_pressed
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def stoppable(on_stop: Callable[[], None], abandon: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Raise a first Ctrl-C in the block, which then parks the move; a second one ends the process, as a kill would.

    The signal's handler calls ``on_stop`` at the first one and ``abandon`` at the second.
    """

    def second(_number: int, _frame: FrameType | None) -> None:
        abandon()
        os._exit(INTERRUPTED)

    def first(_number: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, second)
        on_stop()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, first)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def left(site: Site, move_id: str) -> str:
    """Return what becomes of a move that is not watched any more."""
    picture = Watcher(site, move_id).read()
    move, short = picture.move, move_id[:SHORT]
    if picture.rests:
        return f"move {short} is {move.state}: droveway move show {short}"
    if picture.is_run:
        return f"the move goes on; watch it again with  droveway move watch {short}"
    at = f" at {move.step}, step {move.step_number} of {move.step_count}" if move.step else ""
    return f"nobody runs this lab now, and move {short} waits{at}; carry it on with  droveway move resume {short}"


@contextlib.contextmanager
def _screen(out: TextIO, behind: Picture | None = None) -> Iterator[View]:
    if not is_terminal(out):
        yield Lines(out, behind)
        return
    from droveway.cli.view.live import Screen

    with Screen(out) as screen:
        yield screen


@contextlib.contextmanager
def _shown(watcher: Watcher, view: View) -> Iterator[Callable[[], None]]:
    """Keep the view up to date from a thread; yields a function that makes the view say that everything stops."""
    ended, stopping = threading.Event(), threading.Event()

    def update() -> None:
        view.update(watcher.read(), STOPPING if stopping.is_set() else "")

    def show() -> None:
        while not ended.wait(POLL):
            update()

    printer = threading.Thread(target=show, daemon=True)
    printer.start()
    try:
        yield stopping.set
    finally:
        ended.set()
        printer.join()
        update()


def running(picture: Picture) -> str:
    """Return the move and its present step, with bytes, rate and time left if its host reports them."""
    step = [name_of(picture.steps[-1])] if picture.steps else []
    return f"{picture.move.id[:SHORT]} {', '.join([*step, *picture.progress()])}".rstrip()


def _line(step: MoveStep) -> str:
    where = f" on {step.host}" if step.host else ""
    if step.ended_at is None:
        return f"  ▸ {name_of(step)}{where}"
    spent = (step.ended_at - step.started_at).total_seconds()
    mark, end = ("✗", f": {printable(step.error.get('message', ''))}") if step.error else ("✓", f"  {spent:.0f} s")
    if is_owed(step):
        mark, end = OWED, ": owed, not done"
    return f"  {mark} {name_of(step)}{where}{end}"
