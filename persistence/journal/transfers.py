"""The ways by which a server's disks go into another cell."""

from __future__ import annotations

from typing import Final

AUTO: Final = "auto"
"""Direct where the destination's worker reaches the source's, else by image."""
DIRECT: Final = "direct"
"""From worker to worker, as within a cell."""
IMAGE: Final = "image"
"""Each disk through the image service."""

ALL: Final = (AUTO, DIRECT, IMAGE)
"""What may be asked for."""
