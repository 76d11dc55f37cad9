"""Makes an authority of certificates, and the certificates of conductors, hosts and ZooKeeper's servers."""

from __future__ import annotations

import datetime as dt
import errno
import ipaddress
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from droveway.errors import Refused

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

CERTIFICATE: Final = "authority.pem"
KEY: Final = "authority.key"

CONDUCTOR_SUBJECT: Final = "droveway-conductor"
"""The common name of every conductor's certificate, unless ``conductor_identity`` has another one."""

_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_LONGEST_NAME: Final = 64
"""The largest number of characters in a common name."""
_CLOCKS_DIFFER: Final = dt.timedelta(hours=1)
"""How far a machine's clock may be behind, so that the machine still accepts a certificate that has just been made.

Each certificate is valid from this long before it is made.
"""

_SECRET: Final = 0o600
_PUBLIC: Final = 0o644

_TAKEN: Final = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)
"""The errors of a rename to the name of a file, or of a folder that is not empty."""


def make_authority(folder: Path, days: int) -> dt.datetime:
    """Make a new authority in a folder of its own, and return when it ends, in UTC.

    Raises `droveway.errors.Refused` for a folder that holds something already, and where it cannot be made.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    key = _new_key()
    name = _named("Droveway authority")
    ends = _now() + dt.timedelta(days=days)
    built = (
        _begun(name, name, key, ends)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    _write_new(folder, {CERTIFICATE: _pem(built.sign(key, hashes.SHA256())), KEY: _private(key)})
    return ends


def make_certificate(
    folder: Path, into: Path, subject: str, names: Sequence[str], days: int, *, one_file: bool = False
) -> dt.datetime:
    """Make a certificate and its key in the new folder ``into``, beside a copy of the authority that signs it.

    ``folder`` is the authority's. The certificate is for ``names``, which are DNS names and addresses. With
    ``one_file`` the key and the certificate are in ``own.pem``, else in ``own.key`` and ``own.crt``. Returns when it
    ends, in UTC.
    Raises `droveway.errors.Refused` for a name that no certificate can have, for an authority that cannot be read, for
    an authority that ends before the new certificate would end, and for a folder that holds something already.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import ExtendedKeyUsageOID

    alternatives = [_alternative(name) for name in names]
    signer, authority = _read(folder)
    ends = _now() + dt.timedelta(days=days)
    if ends > authority.not_valid_after_utc:
        raise Refused(
            f"the authority {folder / CERTIFICATE} ends at {authority.not_valid_after_utc:%Y-%m-%d %H:%M} UTC, before "
            f"a certificate of {days} days: give fewer --days, or make a new authority"
        )
    key = _new_key()
    built = (
        _begun(_named(subject), authority.subject, key, ends)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        # Workers and ZooKeeper's servers are both TLS servers and TLS clients: a worker connects to other workers, and
        # each server of ZooKeeper to the other servers.
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
        )
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    certificate, private = _pem(built.sign(signer, hashes.SHA256())), _private(key)
    own = {"own.pem": private + certificate} if one_file else {"own.crt": certificate, "own.key": private}
    _write_new(into, {**own, CERTIFICATE: _pem(authority)})
    return ends


def require_name(name: str) -> None:
    """Raise `droveway.errors.Refused` for a name that a machine cannot have in a certificate and in a path."""
    if not _NAME.fullmatch(name) or len(name) > _LONGEST_NAME:
        raise Refused(
            f"{name!r} cannot be the name of a machine in a certificate: give up to {_LONGEST_NAME} letters, digits, "
            "dots, hyphens and underscores, the first and the last a letter or digit"
        )


def _alternative(name: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        require_name(name)
        return x509.DNSName(name)


def _read(folder: Path) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    """Read an authority's key and certificate."""
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    with _reading(folder / KEY):
        key = serialization.load_pem_private_key((folder / KEY).read_bytes(), password=None)
    with _reading(folder / CERTIFICATE):
        certificate = x509.load_pem_x509_certificate((folder / CERTIFICATE).read_bytes())
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise Refused(
            f"{folder / KEY} is not the key of {folder / CERTIFICATE}: restore both from the same backup, or make a "
            "new authority"
        )
    return key, certificate


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Refused(
            f"the authority's file {path} cannot be read ({error.strerror}): name the directory that "
            " droveway cert authority  has made, or correct its rights"
        ) from None
    except (ValueError, TypeError):
        raise Refused(
            f"the authority's file {path} is not PEM, or it has a passphrase: restore a PEM file without a passphrase"
        ) from None


def _write_new(folder: Path, files: Mapping[str, bytes]) -> None:
    """Make a folder with these files, whole or not at all; nobody but its owner may look into it."""
    try:
        made = Path(tempfile.mkdtemp(prefix=".new-", dir=folder.absolute().parent))
        try:
            for name, content in files.items():
                mode = _PUBLIC if content.startswith(b"-----BEGIN CERTIFICATE-----") else _SECRET
                with os.fdopen(os.open(made / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
            made.rename(folder)
        finally:
            shutil.rmtree(made, ignore_errors=True)
    except OSError as error:
        if error.errno in _TAKEN and (folder.is_symlink() or folder.exists()):
            raise Refused(
                f"{folder} is there already, and a key is never overwritten: rename it, or name another one"
            ) from None
        raise Refused(
            f"{folder} cannot be made ({error.strerror}): name a place that you may write to and that has room"
        ) from None


def _begun(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, ends: dt.datetime
) -> x509.CertificateBuilder:
    from cryptography import x509

    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_now() - _CLOCKS_DIFFER)
        .not_valid_after(ends)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    from cryptography import x509

    names = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    unused: dict[str, Any] = dict.fromkeys((*names, "encipher_only", "decipher_only"), False)
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        **unused,
    )


def _named(name: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _new_key() -> ec.EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives import serialization

    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _pem(certificate: x509.Certificate) -> bytes:
    from cryptography.hazmat.primitives import serialization

    return certificate.public_bytes(serialization.Encoding.PEM)


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC).replace(microsecond=0)
