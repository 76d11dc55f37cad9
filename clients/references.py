"""All that a worker may ask of the cloud: what the references in its commands stand for."""

from __future__ import annotations

from typing import Any

from droveway.clients.volume import Volumes


class References:
    """Resolves references with the worker's own service credential."""

    def __init__(self, volumes: Volumes) -> None:
        self._volumes = volumes

    def connection_info(self, attachment: str) -> dict[str, Any]:
        """How this host reaches the volume of the attachment, as os-brick takes it. May hold a secret.

        Raises `droveway.errors.StepError` ``volume-unconnected`` when the volume is exported to no host.
        """
        return self._volumes.connection_info(attachment)
