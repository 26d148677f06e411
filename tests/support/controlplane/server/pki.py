"""Certificates of one test control plane: its CA, serving and client certificates, and the service account key."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_LIFETIME = datetime.timedelta(days=30)
_SERVER_NAMES = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
_SERVER_ADDRESSES = ("127.0.0.1", "::1", "10.96.0.1")
# KEDA's two programs authenticate to each other with one certificate.
_BOTH_WAYS = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)


class Pki:
    """Writes ca.crt, server.crt/.key and service-account.key/.pub to `directory`, and issues client certificates.

    The serving certificate is valid for loopback, the `kubernetes` Service, and `names` and `addresses`.
    """

    def __init__(self, directory: Path, *, names: Sequence[str] = (), addresses: Sequence[str] = ()) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "omnipipeline-test-ca")])
        ca = (
            self._builder(self._name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.ca = self._write("ca.crt", ca.public_bytes(serialization.Encoding.PEM))
        self.server_certificate, self.server_key = self._serving_pair(
            (*_SERVER_NAMES, *names), (*_SERVER_ADDRESSES, *addresses)
        )
        account_key = ec.generate_private_key(ec.SECP256R1())
        self.service_account_key = self._write("service-account.key", _private_pem(account_key))
        self.service_account_public_key = self._write(
            "service-account.pub",
            account_key.public_key().public_bytes(
                serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
            ),
        )

    def client_pair(self, user: str, groups: Sequence[str] = ()) -> tuple[bytes, bytes]:
        """Returns (certificate, key) in PEM, which authenticate a client as `user` in `groups`."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name(
            [
                *(x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups),
                x509.NameAttribute(NameOID.COMMON_NAME, user),
            ]
        )
        certificate = (
            self._builder(subject, key.public_key())
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return certificate.public_bytes(serialization.Encoding.PEM), _private_pem(key)

    def _serving_pair(self, dns: Sequence[str], addresses: Sequence[str]) -> tuple[Path, Path]:
        key = ec.generate_private_key(ec.SECP256R1())
        names: list[x509.GeneralName] = [x509.DNSName(name) for name in dns]
        names += [x509.IPAddress(ipaddress.ip_address(address)) for address in addresses]
        certificate = (
            self._builder(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kube-apiserver")]), key.public_key())
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.ExtendedKeyUsage(_BOTH_WAYS), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return (
            self._write("server.crt", certificate.public_bytes(serialization.Encoding.PEM)),
            self._write("server.key", _private_pem(key)),
        )

    def _builder(self, subject: x509.Name, public_key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + _LIFETIME)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
            # Since Python 3.13, VERIFY_X509_STRICT is on by default and rejects a chain without this extension.
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )

    def _write(self, name: str, content: bytes) -> Path:
        path = self.directory / name
        path.write_bytes(content)
        path.chmod(0o600)
        return path


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
