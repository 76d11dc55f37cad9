"""The ways in which a server's disks go into another cell."""

from __future__ import annotations

from typing import Final

AUTO: Final = "auto"
"""`DIRECT` where the destination's worker reaches the source's worker, else `IMAGE`."""
DIRECT: Final = "direct"
"""The workers copy the disks from host to host, as within a cell."""
IMAGE: Final = "image"
"""The source uploads each disk to the image service, and the destination downloads it."""

ALL: Final = (AUTO, DIRECT, IMAGE)
"""The ways that an operator may ask for."""
