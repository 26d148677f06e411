"""TLS certificates for stages: an authority that issues them, and a Secret's directory as the kubelet mounts it."""

from __future__ import annotations

import datetime
import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.x509.oid import NameOID

Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey
DAY = datetime.timedelta(days=1)
_USAGES = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
    *("key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)


@dataclass(frozen=True)
class Pair:
    """A certificate with its key."""

    certificate: bytes
    key: bytes
    serial: int
    not_after: datetime.datetime


class Authority:
    """A CA that signs a certificate for any name."""

    def __init__(self, name: str) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        # Since Python 3.13, VERIFY_X509_STRICT is on by default. It rejects a CA without a key usage, and a chain
        # without key identifiers.
        usage = dict.fromkeys(_USAGES, False) | {"key_cert_sign": True, "crl_sign": True}
        authority = (
            _builder(self._name, self._name, self._key.public_key(), 10 * DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(x509.KeyUsage(**usage), critical=True)
        )
        self.certificate = to_pem(authority.sign(self._key, hashes.SHA256()))

    def issue(
        self,
        name: str = "stage",
        *,
        hosts: Sequence[str] = ("localhost",),
        key: Key | None = None,
        lasts: datetime.timedelta = 5 * DAY,
    ) -> Pair:
        """Returns a certificate for the DNS names `hosts`. A negative `lasts` makes one that has expired."""
        own = key or ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = (
            _builder(subject, self._name, own.public_key(), lasts)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(host) for host in hosts]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        pem = own.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return Pair(to_pem(certificate), pem, certificate.serial_number, certificate.not_valid_after_utc)


class MountedSecret:
    """A directory that changes as a Secret's volume does: files are links into `..data`, a link that is replaced."""

    def __init__(self, directory: Path, files: Mapping[str, bytes]) -> None:
        self.directory = directory
        self._numbers = itertools.count()
        directory.mkdir(parents=True)
        self.write(files)

    def write(self, files: Mapping[str, bytes]) -> None:
        """Replaces the content of all files in one atomic step. Then removes old links and adds new ones."""
        version = self.directory / f"..{next(self._numbers)}"
        version.mkdir()
        for name, content in files.items():
            (version / name).write_bytes(content)
        swap = self.directory / "..data_tmp"
        swap.symlink_to(version.name)
        os.replace(swap, self.directory / "..data")
        for path in self.directory.iterdir():
            if not path.name.startswith("..") and path.name not in files:
                path.unlink()
        for name in files:
            if not (self.directory / name).is_symlink():
                (self.directory / name).symlink_to(f"..data/{name}")


def tls_files(pair: Pair, ca: bytes | None = None) -> dict[str, bytes]:
    """Returns a Secret's data, with the keys that cert-manager uses."""
    return {"tls.crt": pair.certificate, "tls.key": pair.key, **({"ca.crt": ca} if ca else {})}


def to_pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: CertificatePublicKeyTypes, lasts: datetime.timedelta
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - 20 * DAY)
        .not_valid_after(now + lasts)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )
