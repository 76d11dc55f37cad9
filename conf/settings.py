"""Reads the configuration file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from oslo_config import cfg

from droveway.conf import (
    api_database,
    conductor,
    confirm,
    cross_cell,
    database,
    journal,
    keeper,
    libvirt,
    quota,
    rights,
    sandbox,
    scheduler,
    tls,
    upgrade_levels,
    worker,
    zookeeper,
)
from droveway.errors import Refused

MODULES: Final = (
    api_database,
    conductor,
    confirm,
    cross_cell,
    database,
    journal,
    keeper,
    libvirt,
    quota,
    sandbox,
    scheduler,
    tls,
    upgrade_levels,
    worker,
    zookeeper,
)


def load(path: Path) -> cfg.ConfigOpts:
    """Read the configuration of a file; a missing file means every default.

    Raises `droveway.errors.Refused` with what is wrong in the file.
    """
    settings = cfg.ConfigOpts()
    _read(settings, path, [str(path)] if path.exists() else [], lambda: None)
    return settings


def load_deployment(path: Path) -> cfg.ConfigOpts:
    """Read the configuration of a daemon, with the options of the log and of the cloud's services.

    Raises `droveway.errors.Refused` for a file that is missing, and with what is wrong in it.
    """
    from oslo_log import log

    from droveway import log_context
    from droveway.conf import services

    if not path.is_file():
        raise Refused(f"the configuration {path} is missing: name another with --config-file, or write it")
    rights.require_readable(path)
    settings = cfg.ConfigOpts()
    log.register_options(settings)
    # The libraries log each of their own steps, which only --debug shows.
    log.set_defaults(
        logging_context_format_string=log_context.FORMAT,
        default_log_levels=["kazoo=ERROR", "taskflow=WARN", "urllib3=WARN", "keystoneauth=WARN"],
    )
    settings.set_default("instance_format", log_context.INSTANCE_FORMAT)
    # systemd's journal reads what a unit writes to stderr.
    settings.set_default("use_stderr", default=True)
    _read(settings, path, [str(path)], lambda: services.register(settings))
    return settings


def list_opts() -> list[tuple[str, Sequence[cfg.Opt]]]:
    """Return every option by its group, as oslo.config's sample generator asks for them."""
    return [(module.GROUP.name, module.OPTS) for module in MODULES]


def _read(settings: cfg.ConfigOpts, path: Path, files: list[str], register: Callable[[], None]) -> None:
    """Read the files into ``settings``, then call ``register``, whose options may depend on what the files say.

    Raises `droveway.errors.Refused` with what is wrong in them.
    """
    for module in MODULES:
        settings.register_group(module.GROUP)
        settings.register_opts(module.OPTS, module.GROUP)
    try:
        settings([], project="droveway", default_config_files=files, default_config_dirs=[])
        register()
        for module in MODULES:
            for option in module.OPTS:
                # oslo.config checks a value only when it is read.
                settings[module.GROUP.name][option.dest]
        _require_known(settings, files)
    except (cfg.Error, ValueError) as error:
        raise Refused(f"the configuration {path} cannot be used: {' '.join(str(error).split())}") from None


def _require_known(settings: cfg.ConfigOpts, files: Sequence[str]) -> None:
    """Raise ValueError for the first option of the files that does not exist; oslo.config would pass over it."""
    for file in files:
        sections: dict[str, dict[str, list[str]]] = {}
        cfg.ConfigParser(file, sections).parse()
        for group, options in sections.items():
            known = _known(settings, group)
            for option in options:
                if option.replace("-", "_") not in known:
                    import difflib

                    near = difflib.get_close_matches(option, known, 1)
                    mend = f"did you mean {near[0]}?" if near else "remove it"
                    raise ValueError(f"[{group}] has no option {option}: {mend}")


def _known(settings: cfg.ConfigOpts, group: str) -> list[str]:
    if group == "DEFAULT":
        return list(settings)
    try:
        return list(settings[group])
    except cfg.NoSuchOptError:
        return []
