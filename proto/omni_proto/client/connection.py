"""From the caller's words to a channel: target, TLS and options of both clients."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc

from omni_proto.errors import ArgumentError
from omni_proto.rpc.options import Options, channel_options

PLAINTEXT_SCHEME: Final = "grpc://"
TLS_SCHEME: Final = "grpcs://"

_HINTS: Final = (
    ("certificate has expired", "the server's certificate has expired: its Secret must be renewed"),
    ("CERTIFICATE_VERIFY_FAILED", "no CA that this client trusts signed the server's certificate: give that CA's"),
    ("Hostname Verification Check failed", "the server's certificate has other names: use one, or give server_name"),
    ("WRONG_VERSION_NUMBER", "the server does not speak TLS: connect without"),
    ("Socket closed", "the server hung up at once: it may want TLS, or another client certificate"),
)
"""By what gRPC says of a handshake that failed."""
_NOT_CONNECTED: Final = ("failed to connect to all addresses", "connections to all backends failing")


@dataclass(frozen=True, slots=True)
class ClientTls:
    """How a client talks to an entry that has TLS."""

    ca: str | Path | None = None
    """PEM file with the CAs to trust. None: the public ones that gRPC knows."""
    certificate: str | Path | None = None
    """PEM file with the client's own certificate and those up to its CA, where the entry asks for one."""
    key: str | Path | None = None
    """PEM file with the certificate's key."""
    server_name: str = ""
    """The name that the server's certificate must have. Empty: the target's host."""

    def to_credentials(self) -> grpc.ChannelCredentials:
        """Reads the files. Raises ArgumentError that names what is wrong with one."""
        if (self.certificate is None) != (self.key is None):
            missing = "key" if self.key is None else "certificate"
            raise ArgumentError(f"tls.{missing} is missing: a client certificate is a certificate and its key")
        roots = None if self.ca is None else _read("ca", self.ca)
        certificate = None if self.certificate is None else _read("certificate", self.certificate)
        key = None if self.key is None else _read("key", self.key)
        self._check()
        credentials: grpc.ChannelCredentials = grpc.ssl_channel_credentials(roots, key, certificate)
        return credentials

    def _check(self) -> None:
        # gRPC says of a file that is wrong no more than that it cannot connect.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if self.ca is not None:
            try:
                context.load_verify_locations(cafile=self.ca)
            except (ssl.SSLError, OSError) as error:
                raise ArgumentError(f"tls.ca: {self.ca} holds no certificates in PEM, or a damaged one") from error
        if self.certificate is not None and self.key is not None:
            try:
                # An empty passphrase: without one, OpenSSL would ask at the terminal.
                context.load_cert_chain(self.certificate, self.key, password=b"")
            except (ssl.SSLError, OSError) as error:
                raise ArgumentError(
                    f"tls.certificate: {self.certificate} and {self.key} are no certificate and its key in PEM, "
                    "without a passphrase"
                ) from error


@dataclass(frozen=True, slots=True)
class Connection:
    """What a channel is made of."""

    target: str
    """As gRPC takes it."""
    credentials: grpc.ChannelCredentials | None
    """None is plaintext."""
    options: Options


def plan_connection(
    target: str,
    *,
    tls: ClientTls | bool | None = None,
    credentials: grpc.ChannelCredentials | None = None,
    options: Options | None = None,
) -> Connection:
    """What a client's arguments mean. Raises ArgumentError where they contradict one another, or a file is wrong."""
    if target.startswith(("http://", "https://")):
        scheme = PLAINTEXT_SCHEME if target.startswith("http://") else TLS_SCHEME
        raise ArgumentError(f"{target} is HTTP, and a pipeline speaks gRPC: begin it with {scheme}")
    plain = target.startswith(PLAINTEXT_SCHEME)
    secure = target.startswith(TLS_SCHEME)
    address = target.removeprefix(PLAINTEXT_SCHEME if plain else TLS_SCHEME)
    used = channel_options() if options is None else options
    if credentials is not None and tls is not None:
        raise ArgumentError("tls and credentials both say how to connect; give one")
    if plain and (tls or credentials is not None):
        raise ArgumentError(f"{target} is plaintext; for TLS begin it with {TLS_SCHEME}")
    if secure and tls is False:
        raise ArgumentError(f"{target} is TLS; for plaintext begin it with {PLAINTEXT_SCHEME}")
    if credentials is not None:
        return Connection(address, credentials, used)
    if not (tls or secure):
        return Connection(address, None, used)
    wanted = tls if isinstance(tls, ClientTls) else ClientTls()
    if wanted.server_name:
        used = (*used, ("grpc.ssl_target_name_override", wanted.server_name))
    return Connection(address, wanted.to_credentials(), used)


def explain_refusal(message: str) -> str:
    """What gRPC says of a connection that did not come about, with what that most often means."""
    if not any(words in message for words in _NOT_CONNECTED):
        return message
    hint = next((hint for words, hint in _HINTS if words in message), None)
    return message if hint is None else f"{message} ({hint})"


def _read(field: str, path: str | Path) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ArgumentError(f"tls.{field}: cannot read {path}: {error.strerror}") from error
