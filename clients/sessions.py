"""Makes a session with each of the cloud's services from its group of the configuration."""

from __future__ import annotations

import functools
import re
from typing import Any, Final

from keystoneauth1 import adapter, exceptions, loading, session
from oslo_config import cfg

from droveway.clients import transport
from droveway.conf.services import GROUPS
from droveway.errors import Refused

_UNTRUSTED: Final = "CERTIFICATE_VERIFY_FAILED"
"""The text in OpenSSL's error when a certificate is for another name, or no trusted authority has signed it."""

_SERVER: Final = re.compile(r"https://([^/\s]+)")
"""Finds the server in keystoneauth's error. A request's ``url`` is often a path, and the catalog names the server."""


class _Session(session.Session):
    """A session whose errors name the user that Keystone refuses, and the server whose certificate is not trusted."""

    group = ""
    user = ""

    def request(self, url: str, method: str, *arguments: Any, **options: Any) -> Any:
        """Send a request as the base class does; the session sends its own requests to Keystone by this method too."""
        try:
            return super().request(url, method, *arguments, **options)
        except exceptions.Unauthorized as error:
            if method != "POST" or options.get("authenticated") is not False:
                raise
            who = f"the user {self.user}" if self.user else "the user"
            raise exceptions.ClientException(
                f"Keystone does not let in {who} of [{self.group}] ({error}): correct the user's name, password and "
                "project there"
            ) from None
        except exceptions.SSLError as error:
            if _UNTRUSTED not in str(error):
                raise
            server = _SERVER.search(str(error))
            raise exceptions.ClientException(
                f"the certificate of {server[1] if server else url} is not for that name, or of no authority that "
                f"[{self.group}] trusts: name the file of its authority in cafile there"
            ) from None


class _Loader(loading.session.Session):
    """Makes a `_Session` from options."""

    @property
    def plugin_class(self) -> type[_Session]:
        return _Session


def connect(conf: cfg.ConfigOpts, group: str) -> tuple[session.Session, dict[str, Any]]:
    """Return a session for one service, and the options of an adapter over it; nothing is sent.

    Raises `droveway.errors.Refused` naming the option that is missing.
    """
    try:
        auth = loading.load_auth_from_conf_options(conf, group)
        if auth is None:
            raise Refused(f"[{group}] auth_type is missing: name one that keystoneauth knows, like v3password")
        options = {name: conf[group][name] for name in ("tls_ciphers", "tls_min_version")}
        found: Any = _Loader().load_from_conf_options(conf, group, auth=auth, session=transport.Session(**options))
        found.group, found.user = group, user_of(conf, group)
        where: dict[str, Any] = {}
        loading.adapter.process_conf_options(conf[group], where)
    except (exceptions.ClientException, TypeError, ValueError) as error:
        raise Refused(f"[{group}] does not say how the service is reached: {error}") from None
    return found, {name: value for name, value in where.items() if name != "service_type"}


def user_of(conf: cfg.ConfigOpts, group: str) -> str:
    """Return the user of a service's session for messages; empty when the configuration names none."""
    told = (getattr(conf[group], name, None) for name in ("username", "user_id", "application_credential_name"))
    return next((str(name) for name in told if name), "")


class Neutron:
    """Holds keystoneauth's adapter of Neutron's API v2.0, made at the first request, which may look up the address.

    It finds the address as openstacksdk does. Each command that requests a move asks Neutron. With openstacksdk in the
    place of this class, such a command would spend most of its time on importing it.
    """

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        """Raise `droveway.errors.Refused` naming the option that is missing."""
        self._session, where = connect(conf, "neutron")
        versions = ("version", "min_version", "max_version")
        self._options = {name: value for name, value in where.items() if name not in versions}
        self._options["service_type"] = conf.neutron.service_type or GROUPS["neutron"]

    def request(self, url: str, method: str, **options: Any) -> Any:
        """Send a request as keystoneauth's adapters do; raises keystoneauth's exceptions alone."""
        return self._made.request(url, method, **options)

    @functools.cached_property
    def _made(self) -> adapter.Adapter:
        made = adapter.Adapter(self._session, **self._options)
        if made.endpoint_override:
            data = made.get_endpoint_data()
            made.endpoint_override = data.url if data is not None else made.endpoint_override
        else:
            # The catalog may name Neutron's root. The list of versions there is not open in every cloud.
            root = str(made.get_endpoint()).rstrip("/").removesuffix("/v2.0")
            made.endpoint_override = f"{root}/v2.0"
        return made


class Proxy:
    """Holds openstacksdk's proxy of one service, made at the first request, since that may look up the address."""

    def __init__(self, conf: cfg.ConfigOpts, group: str, *, version: str) -> None:
        """Take ``version`` as the major version of the API; the catalog's address may lack it."""
        self._conf = conf
        self._group = group
        self._version = version
        self._session, _ = connect(conf, group)

    def request(self, url: str, method: str, **options: Any) -> Any:
        """Send a request as keystoneauth's adapters do; raises keystoneauth's exceptions alone."""
        # keystoneauth logs whole answers at level debug, and an answer of Cinder may hold the secret that opens a
        # volume.
        return self._made.request(url, method, log=self._group != "cinder", **options)

    @functools.cached_property
    def _made(self) -> Any:
        from openstack import connection
        from openstack import exceptions as sdk
        from openstack.config import cloud_region, defaults

        kind = GROUPS[self._group]
        name = kind.replace("-", "_")
        config = {**defaults.get_defaults(), f"{name}_api_version": self._version}
        try:
            region = cloud_region.from_conf(self._conf, self._session, [kind], config=config)
            made = getattr(connection.Connection(config=region), name)
            # What stands for a service that the catalog lacks raises at its first use, outside of this function.
            _ = made.request
        except sdk.ServiceDisabledException:
            raise exceptions.ClientException(
                f"Keystone's catalog has no endpoint of the service {kind} where [{self._group}] looks for one: "
                "correct region_name and valid_interfaces there, or enter the service in the catalog"
            ) from None
        except sdk.SDKException as error:
            raise exceptions.ClientException(str(error)) from None
        return made
