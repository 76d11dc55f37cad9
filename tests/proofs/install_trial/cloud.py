"""The cloud of the trial: a real Keystone, Placement and Neutron, and a lab's volumes and images, in one catalog."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from proofs.install_trial.network import CONTROL as ADDRESS
from support.servers import openstack_lab, openstack_services
from support.servers.openstack_services import OpenStack

from droveway.lab import build, served_cloud
from droveway.lab.cloud import parse_cloud
from droveway.lab.session import Lab

PORT: Final = 5000
"""Where the page has Keystone."""

_NOVA: Final = "nova"
"""The user that made what the server holds, as Nova does."""
_PATHS: Final = {"block-storage": "volume", "image": "image"}
"""Type of a service in the catalog → its path at the lab's server."""


class _Versioned:
    """A lab's service at the paths that one with a catalog is asked by, which begin with a version."""

    def __init__(self, service: Any) -> None:
        self._service = service

    def request(self, path: str, *words: Any, **options: Any) -> Any:
        """Ask the service without the version."""
        return self._service.request(re.sub(r"^/v[0-9.]+(?=/)", "", path), *words, **options)

    def close(self) -> None:
        """Close it."""
        self._service.close()


@contextlib.contextmanager
def running(folder: Path, cloud: str) -> Iterator[tuple[OpenStack, Lab]]:
    """Run the services where the hosts reach them, and make a lab of this cloud file that is in the real ones."""
    folder.mkdir()
    with openstack_services.running(folder, address=ADDRESS, port=PORT) as services, contextlib.ExitStack() as stack:
        services.keystone.add_user(_NOVA, "service", "admin")
        configuration = openstack_lab.configuration(services, folder / "nova.conf", user=_NOVA)
        with openstack_lab.over(services, configuration):
            build.create(folder / "lab", parse_cloud(cloud, "the trial")).close()
            lab = Lab.open(folder / "lab")
        stack.callback(lab.close)
        served = stack.enter_context(served_cloud.served(lab.layout, ADDRESS))
        local: Any = {name: _Versioned(service) for name, service in served.local.items()}
        served.local = local
        for kind, path in _PATHS.items():
            services.keystone.add_endpoint(kind, f"http://{ADDRESS}:{served.server_port}/{path}")
        yield services, lab
