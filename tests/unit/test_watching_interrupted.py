"""Ctrl-C while a move is watched: kept until the look is over, never lost in it."""

from __future__ import annotations

import signal

import pytest

from droveway.cli.view import watching


def test_the_first_ctrl_c_waits_for_the_end_of_a_look_and_the_second_does_not() -> None:
    before = signal.getsignal(signal.SIGINT)
    with watching._between_reads() as raise_pressed:
        raise_pressed()
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            raise_pressed()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
