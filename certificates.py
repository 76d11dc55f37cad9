"""Reads the certificate of a daemon, checks it against its key and the clock, and makes TLS contexts of it."""

from __future__ import annotations

import contextlib
import datetime as dt
import ssl
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from droveway.errors import Refused

if TYPE_CHECKING:
    from cryptography import x509
    from oslo_config import cfg

FILES: Final = ("certificate", "key", "authority")


@dataclass(frozen=True)
class Identity:
    """A daemon's certificate and key, and the authorities that it trusts: PEM files that fit one another."""

    certificate: Path
    key: Path
    authority: Path
    names: frozenset[str]
    """The DNS names that the certificate is for."""
    subject: str
    """The certificate's subject, written as in RFC 2253. ZooKeeper knows the daemon by this name."""
    expires: dt.datetime
    """When the certificate expires, in UTC with its zone."""

    def server_context(self) -> ssl.SSLContext:
        """Return the context of a server, which accepts only peers whose certificate the authority has signed.

        It reads the files anew, so that a renewed certificate is used.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.verify_mode = ssl.CERT_REQUIRED
        context.num_tickets = 0
        return self._fill(context)

    def client_context(self) -> ssl.SSLContext:
        """Return the context of a client, which connects only to peers whose certificate names the host it calls."""
        return self._fill(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))

    def _fill(self, context: ssl.SSLContext) -> ssl.SSLContext:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_verify_locations(self.authority)
        context.load_cert_chain(self.certificate, self.key)
        return context


def load(conf: cfg.ConfigOpts) -> Identity | None:
    """Return the identity of ``[tls]``; None where the group is empty.

    Raises `droveway.errors.Refused` in these cases:

    * A file is not named, cannot be read, or is no PEM file of its kind.
    * Every user of this machine has a right to the key's file, or the key belongs to another certificate.
    * The certificate has expired, or is not valid yet.
    """
    given = {name: Path(conf.tls[name]) for name in FILES if conf.tls[name]}
    if not given:
        return None
    if missing := [name for name in FILES if name not in given]:
        raise Refused(f"[tls] {missing[0]} is missing: give {', '.join(FILES)}, or none of them")
    return read(given["certificate"], given["key"], given["authority"])


def read(certificate: Path, key: Path, authority: Path) -> Identity:
    """Return the identity in these files; raises as `load` does."""
    from cryptography import x509

    with _reading("authority", authority):
        x509.load_pem_x509_certificates(authority.read_bytes())
    with _reading("certificate", certificate):
        own = x509.load_pem_x509_certificates(certificate.read_bytes())[0]
    _require_key(certificate, key, own)
    _require_time(certificate, own)
    return Identity(
        certificate=certificate,
        key=key,
        authority=authority,
        names=frozenset(_names(own)),
        subject=own.subject.rfc4514_string(),
        expires=own.not_valid_after_utc,
    )


def require_name(identity: Identity, name: str) -> None:
    """Raise `droveway.errors.Refused` when the certificate is not for this name."""
    if name not in identity.names:
        has = ", ".join(sorted(identity.names)) or "none"
        raise Refused(
            f"[tls] certificate {identity.certificate} is not for {name}, its DNS names are: {has}; have one issued "
            f"that names {name}"
        )


def peer_names(stream: ssl.SSLSocket) -> frozenset[str]:
    """Return the DNS names of the peer's certificate; the peer has proved that it has the certificate's key."""
    found: Any = stream.getpeercert() or {}
    return frozenset(name for kind, name in found.get("subjectAltName", ()) if kind == "DNS")


def _require_key(certificate: Path, key: Path, own: x509.Certificate) -> None:
    from cryptography.hazmat.primitives import serialization

    with _reading("key", key):
        mode = key.stat().st_mode
        private = serialization.load_pem_private_key(key.read_bytes(), password=None)
    if mode & stat.S_IRWXO:
        raise Refused(f"[tls] key {key} gives rights to everybody on this machine: chmod o-rwx {key}")
    if private.public_key() != own.public_key():
        raise Refused(
            f"[tls] key {key} is not that of the certificate {certificate}: give the pair that belongs together"
        )


def _require_time(certificate: Path, own: x509.Certificate) -> None:
    now = dt.datetime.now(dt.UTC)
    if now < own.not_valid_before_utc:
        raise Refused(
            f"[tls] certificate {certificate} is valid from {own.not_valid_before_utc:%Y-%m-%d %H:%M} UTC on, and this "
            f"machine's clock says {now:%Y-%m-%d %H:%M}: set the clock, or wait"
        )
    if now >= own.not_valid_after_utc:
        raise Refused(
            f"[tls] certificate {certificate} has expired at {own.not_valid_after_utc:%Y-%m-%d %H:%M} UTC: renew it"
        )


def _names(own: x509.Certificate) -> list[str]:
    from cryptography import x509

    try:
        found = own.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return []
    return found.value.get_values_for_type(x509.DNSName)


@contextlib.contextmanager
def _reading(what: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Refused(
            f"[tls] {what} {path} cannot be read ({error.strerror}): correct the path or its rights"
        ) from None
    except (ValueError, TypeError):
        raise Refused(f"[tls] {what} {path} cannot be used: give a PEM file that no passphrase protects") from None
