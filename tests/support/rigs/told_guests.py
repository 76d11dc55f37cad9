"""What a worker tells of a guest that it has started."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from droveway.errors import StepError
from droveway.workers.actions import guests
from droveway.workers.hypervisors.base import Hypervisor


def told(hypervisor: Hypervisor, server: str) -> str:
    """That it runs, or the code of the error instead."""

    def failed(text: str, *, code: str) -> StepError:
        return StepError(text, code=code, host="alpha")

    ctx: Any = SimpleNamespace(server=server, hypervisor=hypervisor, host=SimpleNamespace(name="alpha"), failed=failed)
    try:
        guests.require_up(ctx)
    except StepError as error:
        return error.error_code
    return "running"
