"""A certificate authority for tests, and the files of those that it has issued certificates to."""

from __future__ import annotations

import dataclasses
import datetime as dt
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAY = dt.timedelta(days=1)


@dataclasses.dataclass(frozen=True)
class Files:
    """Somebody's certificate, key and authority, as ``[tls]`` wants them."""

    certificate: Path
    key: Path
    authority: Path

    def options(self) -> dict[str, str]:
        """The group ``[tls]``."""
        return {field.name: str(getattr(self, field.name)) for field in dataclasses.fields(self)}


class Authority:
    """Issues certificates into a folder of its own."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _subject(name)
        now = dt.datetime.now(dt.UTC)
        built = _begun(self._name, self._name, self._key, now - DAY, now + 10 * DAY)
        built = built.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        self.path = folder / f"{name}.pem"
        self.path.write_bytes(_pem(built.sign(self._key, hashes.SHA256())))

    def issue(
        self,
        name: str,
        *,
        names: tuple[str, ...] | None = None,
        begins: dt.datetime | None = None,
        ends: dt.datetime | None = None,
    ) -> Files:
        """A certificate whose subject is CN=``name``, for the DNS names ``names`` (else ``name`` and localhost)."""
        now = dt.datetime.now(dt.UTC)
        key = ec.generate_private_key(ec.SECP256R1())
        built = _begun(_subject(name), self._name, key, begins or now - DAY, ends or now + 5 * DAY)
        alternatives = [x509.DNSName(each) for each in ((name, "localhost") if names is None else names)]
        if alternatives:
            built = built.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        uses = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        built = built.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        files = Files(self._folder / f"{name}.crt", self._folder / f"{name}.key", self.path)
        files.certificate.write_bytes(_pem(built.sign(self._key, hashes.SHA256())))
        files.key.touch(mode=0o600)
        files.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return files


def _begun(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    begins: dt.datetime,
    ends: dt.datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(ends)
    )


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
