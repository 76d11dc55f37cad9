"""Makes of a process one of a later release: it has resize@2 instead of resize@1."""

from __future__ import annotations

import dataclasses

from droveway.flows import registry

registry.GRAPHS["resize", 2] = dataclasses.replace(registry.GRAPHS.pop(("resize", 1)), version=2)
