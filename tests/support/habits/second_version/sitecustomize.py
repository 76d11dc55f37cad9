"""Makes of a process one of a later release: it has one version of resize more, which asks hosts for a new action."""

from __future__ import annotations

from support import second_version

second_version.declare()
second_version.enter()

from droveway.flows import registry  # noqa: E402 - the action is declared first

registry.GRAPHS.update(second_version.graphs("resize"))
