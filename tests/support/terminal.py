"""A command on a terminal of its own."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import sys
import threading
from pathlib import Path
from typing import Final, NamedTuple

_AT_ONCE: Final = (
    "import sys; from droveway.cli import main; from droveway.cli.view import progress; progress.DELAY = 0.0; "
    "sys.exit(main.main(sys.argv[1:]))"
)
_COLUMNS: Final = "200"


class Ended(NamedTuple):
    """What stood on the terminal in its course, and the exit code."""

    said: str
    code: int


def on_terminal(*words: str, piped: Path | None = None, seconds: float = 60.0) -> Ended:
    """Give the command, which shows its progress at once; ``piped``: a file that its stdout goes to."""
    reading, writing = pty.openpty()
    said = bytearray()

    def read() -> None:
        # A terminal that nobody holds open any more ends with an error.
        with contextlib.suppress(OSError):
            while data := os.read(reading, 65536):
                said.extend(data)

    with contextlib.ExitStack() as stack:
        stack.callback(os.close, reading)
        out = writing if piped is None else stack.enter_context(piped.open("wb"))
        process = subprocess.Popen(
            [sys.executable, "-c", _AT_ONCE, *words],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=writing,
            env={**os.environ, "TERM": "xterm-256color", "COLUMNS": _COLUMNS},
        )
        os.close(writing)
        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        code = process.wait(seconds)
        reader.join(seconds)
    return Ended(said.decode(errors="replace"), code)
