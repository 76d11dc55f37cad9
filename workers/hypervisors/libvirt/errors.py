"""What libvirt's error codes mean to an action that may be repeated.

A code says more than the text, which is not stable, and less than the state: several codes mean more than one thing,
so whoever meets one looks at the state again before he decides.
"""

from __future__ import annotations

import enum
from typing import Any


class Code(enum.IntEnum):
    """The codes (``VIR_ERR_...``) on which something is decided."""

    INTERNAL_ERROR = 1
    SYSTEM_ERROR = 38
    RPC = 39
    NO_DOMAIN = 42


# VIR_FROM_RPC and VIR_FROM_REMOTE: the error was made by the client's end of the connection.
_CONNECTION = (7, 13)


def is_code(error: Any, code: Code) -> bool:
    """Whether the libvirtError has this code."""
    return bool(error.get_error_code() == code)


def is_lost(error: Any) -> bool:
    """Whether the call went unanswered: its daemon died or hangs, so nobody knows what it did."""
    return error.get_error_domain() in _CONNECTION and error.get_error_code() in (
        Code.INTERNAL_ERROR,
        Code.SYSTEM_ERROR,
        Code.RPC,
    )


def text_of(error: Any) -> str:
    """The error as one line for an operator."""
    message = " ".join(str(error.get_error_message()).split())
    return f"{message} (libvirt error {error.get_error_code()})"
