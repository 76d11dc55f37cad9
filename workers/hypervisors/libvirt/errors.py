"""What libvirt's error codes mean to an action that may be repeated.

A code is more reliable than the text of an error, which changes between releases.  But several codes mean more than
one thing, so the caller looks at the guest's state again before it decides.
"""

from __future__ import annotations

import enum
from typing import Any


class Code(enum.IntEnum):
    """The error codes (``VIR_ERR_...``) that decide something here."""

    INTERNAL_ERROR = 1
    SYSTEM_ERROR = 38
    RPC = 39
    NO_DOMAIN = 42


# VIR_FROM_RPC and VIR_FROM_REMOTE: the error was made by the client's end of the connection.
_CONNECTION = (7, 13)


def is_code(error: Any, code: Code) -> bool:
    """Return whether the libvirtError has this code."""
    return bool(error.get_error_code() == code)


def is_lost(error: Any) -> bool:
    """Return whether the call got no answer: its daemon died or hangs, so nobody knows what the call did."""
    return error.get_error_domain() in _CONNECTION and error.get_error_code() in (
        Code.INTERNAL_ERROR,
        Code.SYSTEM_ERROR,
        Code.RPC,
    )


def text_of(error: Any) -> str:
    """Return the error as one line for an operator."""
    message = " ".join(str(error.get_error_message()).split())
    return f"{message} (libvirt error {error.get_error_code()})"
