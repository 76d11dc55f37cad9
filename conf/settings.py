"""Reading the configuration file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from oslo_config import cfg

from droveway.conf import conductor, confirm, quota, scheduler, worker
from droveway.errors import Refused

MODULES = (conductor, confirm, quota, scheduler, worker)


def load(path: Path) -> cfg.ConfigOpts:
    """The configuration in a file; raises `droveway.errors.Refused` naming what is wrong in it.

    A missing file means every default.
    """
    settings = cfg.ConfigOpts()
    for module in MODULES:
        settings.register_group(module.GROUP)
        settings.register_opts(module.OPTS, module.GROUP)
    try:
        settings([], project="droveway", default_config_files=[str(path)] if path.exists() else [])
        for module in MODULES:
            for option in module.OPTS:
                # A value is only looked at, and found to be wrong, when it is asked for.
                settings[module.GROUP.name][option.dest]
    except (cfg.Error, ValueError) as error:
        raise Refused(f"the configuration {path} cannot be used: {' '.join(str(error).split())}") from None
    return settings


def list_opts() -> list[tuple[str, Sequence[cfg.Opt]]]:
    """Every option by its group, as oslo.config's sample generator wants them."""
    return [(module.GROUP.name, module.OPTS) for module in MODULES]
