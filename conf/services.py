"""Registers how the cloud's services are reached: keystoneauth's options, in one group for each service.

The groups have the names that they have in Nova's configuration.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from keystoneauth1 import exceptions, loading
from oslo_config import cfg

from droveway.errors import Refused

GROUPS: Final = {"placement": "placement", "neutron": "network", "cinder": "block-storage", "glance": "image"}
"""The group of each service, and its type in the catalog."""

OPTIONAL: Final = frozenset({"glance"})
"""The services that most moves do without: a configuration need not say how they are reached."""

ANSWERS_WITHIN: Final = 60
"""Seconds after which a request counts as lost, even when part of its answer came; the default of ``timeout``."""


def register(conf: cfg.ConfigOpts) -> None:
    """Register every service's options, and those of the keystoneauth plugin that its auth_type names.

    Raises `droveway.errors.Refused` for an auth_type that keystoneauth does not know.
    """
    for group in GROUPS:
        loading.register_session_conf_options(conf, group)
        # keystoneauth's own default is to wait for ever.
        conf.set_default("timeout", ANSWERS_WITHIN, group)
        loading.register_auth_conf_options(conf, group)
        loading.register_adapter_conf_options(conf, group)
        kind = conf[group].auth_type
        if kind is not None:
            try:
                conf.register_opts(loading.get_auth_plugin_conf_options(kind), group)
            except exceptions.NoMatchingPlugin:
                raise Refused(
                    f"[{group}] auth_type names {kind}, which keystoneauth does not know: use v3password"
                ) from None


def is_named(conf: cfg.ConfigOpts, group: str) -> bool:
    """Say whether the configuration tells how to reach the service of this group, or the service is not optional.

    Moves use no optional service that the configuration leaves out.
    """
    return group not in OPTIONAL or bool(conf[group].auth_type or conf[group].auth_section)


def list_opts() -> list[tuple[str, Sequence[cfg.Opt]]]:
    """Return the options by group for the sample; the options of each auth_type stand in keystoneauth's documents."""
    of_session = loading.get_session_conf_options()
    cfg.set_defaults(of_session, timeout=ANSWERS_WITHIN)
    shared = [
        *of_session,
        *loading.get_auth_common_conf_options(),
        *loading.get_adapter_conf_options(),
    ]
    return [(group, shared) for group in GROUPS]
