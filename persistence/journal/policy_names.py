"""Names the confirm policies of a move."""

from __future__ import annotations

from typing import Final

DEADLINE: Final = "deadline"
"""Confirms when the move's time is over, as Nova does with `resize_confirm_window`."""
MANUAL: Final = "manual"
"""Waits until a person confirms or reverts, without a deadline."""
AUTO: Final = "auto"
"""Confirms at once."""
HEALTHY: Final = "healthy"
"""Confirms when the destination reports that the guest is healthy; reverts when it still is not at the deadline."""
