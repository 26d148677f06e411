"""TLS of the gRPC port: reads the certificate files, checks them, passes them to gRPC, and reloads them if they change.

    files -> read_certificate -> Certificate -> gRPC's configuration, which gRPC fetches at every handshake

A Secret that is mounted as a directory changes some time after cert-manager has renewed the certificate. The change is
atomic, because kubelet replaces one symbolic link. If the new files are not valid, the certificate in use stays. A
connection keeps the certificate that it began with.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import grpc
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes, PublicKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key
from prometheus_client import CollectorRegistry, Gauge

from omni_proto.pod_contract import StageMetric
from omni_proto.stage_config import ClientCertificates, ServerTls
from omni_stage.errors import ConfigurationError

CHAIN_FILE: Final = "tls.crt"
KEY_FILE: Final = "tls.key"
CLIENT_CA_FILE: Final = "ca.crt"
POLL_S: Final = 5.0
"""Seconds between two reads of the files. kubelet takes up to a minute to update them."""
FIELD: Final = "listen.tls"
_MAX_BYTES: Final = 1 << 20
"""Maximum size of a file. A Secret cannot hold more."""
_READS: Final = 3
_LEAST_RSA_BITS: Final = 2048

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate that gRPC can serve with."""

    chain: bytes
    """The server's certificate and the intermediate certificates, PEM."""
    key: bytes = field(repr=False)
    """The private key, PEM."""
    client_ca: bytes | None
    """Certificates of the CAs that may sign clients' certificates, PEM; None if clients need no certificate."""
    not_after: datetime
    fingerprint: str
    """SHA-256 of the server's certificate, in hexadecimal."""

    def to_grpc(self) -> grpc.ServerCertificateConfiguration:
        """Returns the certificate as gRPC's configuration."""
        return grpc.ssl_server_certificate_configuration([(self.key, self.chain)], self.client_ca)


def read_certificate(settings: ServerTls) -> Certificate:
    """Returns the certificate in the current files.

    An expired certificate is accepted, because clients check the date with their own clocks. Raises ConfigurationError,
    which names the file and the problem, but never the content.
    """
    wants_ca = settings.client_certificates is ClientCertificates.REQUIRED
    names = (CHAIN_FILE, KEY_FILE, *([CLIENT_CA_FILE] if wants_ca else []))
    files = _read_settled(settings, names)
    leaf, certified = _parse_certificates(settings, CHAIN_FILE, files[CHAIN_FILE])[0]
    public = _parse_public_key(settings, files[KEY_FILE])
    if _encode(public) != _encode(certified):
        raise _wrong(settings, KEY_FILE, f"is not the key of {CHAIN_FILE}")
    if not _is_served(public):
        raise _wrong(
            settings,
            KEY_FILE,
            f"must be RSA of {_LEAST_RSA_BITS} bits or more, or ECDSA on P-256 or P-384 (what gRPC serves)",
        )
    if wants_ca:
        _parse_certificates(settings, CLIENT_CA_FILE, files[CLIENT_CA_FILE])
    return Certificate(
        chain=files[CHAIN_FILE],
        key=files[KEY_FILE],
        client_ca=files.get(CLIENT_CA_FILE),
        not_after=leaf.not_valid_after_utc,
        fingerprint=leaf.fingerprint(hashes.SHA256()).hex(),
    )


class CertificateMetrics:
    """Metrics of a stage that serves TLS; other stages do not have them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.expiry = Gauge(
            StageMetric.CERTIFICATE_EXPIRY_SECONDS,
            "When the certificate for new connections expires, in seconds since 1970. Only for an entry with TLS.",
            unit="seconds",
            registry=registry,
        )
        self.rejected = Gauge(
            StageMetric.CERTIFICATE_REJECTED,
            "1 while the certificate files cannot be used, so that an older certificate is served. Only with TLS.",
            registry=registry,
        )


class ServingCertificate:
    """The certificate that new connections get. `watch` reloads it when the files change."""

    def __init__(self, settings: ServerTls, registry: CollectorRegistry) -> None:
        """Reads the files. Raises ConfigurationError."""
        self._settings = settings
        self._metrics = CertificateMetrics(registry)
        self._lock = threading.Lock()
        self._current = self._given = read_certificate(settings)
        self._told_expired = False
        self._problem = ""
        self._log_event("certificate loaded")

    @property
    def current(self) -> Certificate:
        """The certificate that new connections get."""
        return self._current

    def credentials(self) -> grpc.ServerCredentials:
        """Returns the credentials of one port. Clients need TLS 1.2 or newer; gRPC supports no older version."""
        required = self._settings.client_certificates is ClientCertificates.REQUIRED
        credentials: grpc.ServerCredentials = grpc.dynamic_ssl_server_credentials(
            self._current.to_grpc(), self._fetch, required
        )
        return credentials

    def refresh(self) -> bool:
        """Read the files. Returns True if new connections get another certificate from now on.

        Files that cannot be used change nothing. Their problem is logged once, and again only if the problem changes.
        """
        try:
            found = read_certificate(self._settings)
        except ConfigurationError as error:
            self._metrics.rejected.set(1)
            if str(error) != self._problem:
                self._problem = str(error)
                _log.error("the new certificate cannot be used, the old one stays: %s", error)
            return False
        self._metrics.rejected.set(0)
        recovered, self._problem = bool(self._problem), ""
        if found == self._current:
            if recovered:
                self._log_event("certificate files match the served certificate again")
            elif self._current.not_after <= datetime.now(UTC) and not self._told_expired:
                self._log_event("certificate in use")
            return False
        with self._lock:
            self._current = found
        self._log_event("certificate replaced")
        return True

    async def watch(self, poll_s: float = POLL_S) -> None:
        """Call `refresh` every `poll_s` seconds, forever."""
        while True:
            await asyncio.sleep(poll_s)
            await asyncio.to_thread(self.refresh)

    def _fetch(self) -> grpc.ServerCertificateConfiguration | None:
        """Returns the certificate if it has changed, else None. gRPC calls this at each handshake, on its own threads.

        gRPC would ignore a certificate that it cannot load, but read_certificate accepts no such certificate.
        """
        with self._lock:
            if self._given is self._current:
                return None
            self._given = self._current
            return self._current.to_grpc()

    def _log_event(self, event: str) -> None:
        found = self._current
        self._metrics.expiry.set(found.not_after.timestamp())
        expired = self._told_expired = found.not_after <= datetime.now(UTC)
        _log.log(
            logging.WARNING if expired else logging.INFO,
            "%s%s",
            event,
            ": it has expired, clients will refuse it" if expired else "",
            extra={"not_after": found.not_after.isoformat(), "sha256": found.fingerprint},
        )


def _read_settled(settings: ServerTls, names: tuple[str, ...]) -> dict[str, bytes]:
    """Returns the content of the files, which are read until two reads in a row agree, with at most _READS repeats."""
    files = {name: _read(settings, name) for name in names}
    for _ in range(_READS):
        again = {name: _read(settings, name) for name in names}
        if again == files:
            break
        files = again
    return files


def _read(settings: ServerTls, name: str) -> bytes:
    try:
        with (Path(settings.directory) / name).open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise _wrong(settings, name, "does not exist") from error
    except OSError as error:
        raise _wrong(settings, name, f"cannot be read: {error.strerror}") from error
    if not content.strip():
        raise _wrong(settings, name, "is empty")
    if len(content) > _MAX_BYTES:
        raise _wrong(settings, name, f"has more than {_MAX_BYTES} bytes")
    return content


def _parse_certificates(
    settings: ServerTls, name: str, content: bytes
) -> list[tuple[x509.Certificate, CertificatePublicKeyTypes]]:
    """Returns each certificate with its public key. Reading the key is a check: it may be damaged in a readable
    certificate."""
    try:
        return [(found, found.public_key()) for found in x509.load_pem_x509_certificates(content)]
    except (ValueError, UnsupportedAlgorithm, x509.InvalidVersion) as error:
        raise _wrong(settings, name, "holds no certificates in PEM, or a damaged one") from error


def _parse_public_key(settings: ServerTls, content: bytes) -> PublicKeyTypes:
    try:
        return load_pem_private_key(content, password=None).public_key()
    except TypeError as error:
        raise _wrong(settings, KEY_FILE, "is encrypted; give it without a passphrase") from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise _wrong(settings, KEY_FILE, "holds no private key in PEM, or a damaged one") from error


def _encode(key: PublicKeyTypes | CertificatePublicKeyTypes) -> bytes:
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _is_served(key: PublicKeyTypes) -> bool:
    """Returns whether gRPC's clients accept the key; with Ed25519, for example, they only see a closed connection."""
    if isinstance(key, rsa.RSAPublicKey):
        return key.key_size >= _LEAST_RSA_BITS
    return isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1 | ec.SECP384R1)


def _wrong(settings: ServerTls, name: str, what: str) -> ConfigurationError:
    where = f" of {settings.source}" if settings.source else f" in {settings.directory}"
    return ConfigurationError(f"{name}{where} {what}", field=f"{FIELD}.{name}")
