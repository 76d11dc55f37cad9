"""Wraps a command's standard output, so that an error of writing differs from every other error."""

from __future__ import annotations

import codecs
import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any, Final, TextIO

from droveway.errors import DrovewayError

INTERRUPTED: Final = 130
"""The exit code of a command that Ctrl-C ended."""

_MARKS: Final = {"→": "->", "✓": "+", "✗": "x", "▸": ">", "·": ".", "↶": "<", "…": "..."}
_ERRORS: Final = "droveway-marks"
_ALL_LETTERS: Final = "utf-8"
_STANDARD: Final = (0, 1, 2)


class OutputLost(DrovewayError):
    """The command's output could not be written, though what the command did is done."""

    code = "output-lost"
    exit_code = 1


class Output:
    """Standard output; raises `OutputLost` when it cannot be written, and lets BrokenPipeError through."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write the text, now or with the next flush."""
        if self._stream is None:
            raise OutputLost("the output could not be written (it is closed)")
        with _reporting_loss():
            return self._stream.write(text)

    def flush(self) -> None:
        """Write what is left to write."""
        if self._stream is not None:
            with _reporting_loss():
                self._stream.flush()

    def isatty(self) -> bool:
        """Say whether it is a terminal."""
        return self._stream is not None and self._stream.isatty()

    def abandon(self) -> None:
        """Drop all further output, which would fail again when the process ends."""
        if self._stream is not None:
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def _reporting_loss() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputLost(f"the output could not be written ({error.strerror})") from None
    except ValueError as error:
        raise OutputLost(f"the output could not be written ({error})") from None


@contextlib.contextmanager
def standard() -> Iterator[Output]:
    """Yield standard output for one command; characters that its encoding lacks are replaced."""
    _fill_descriptors()
    before = sys.stdout, sys.stderr
    codecs.register_error(_ERRORS, _in_other_letters)
    for stream in before:
        if hasattr(stream, "reconfigure") and codecs.lookup(stream.encoding).name != _ALL_LETTERS:
            stream.reconfigure(errors=_ERRORS)
    output = Output(sys.stdout)
    try:
        with open(os.devnull, "w", encoding="utf-8") as nowhere:  # noqa: PTH123 - it is no file
            sys.stdout, sys.stderr = output, sys.stderr or nowhere
            yield output
    finally:
        sys.stdout, sys.stderr = before


def _fill_descriptors() -> None:
    """Open the null device for standard streams that are closed; else a database would get their number."""
    for number in _STANDARD:
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def _in_other_letters(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    letters = error.object[error.start : error.end]
    return "".join(_MARKS.get(each, "?") for each in letters), error.end
