"""Turns a client's arguments into the target, credentials and options of a channel, for both clients."""

from __future__ import annotations

import ipaddress
import re
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc

from omni_proto.errors import ArgumentError
from omni_proto.rpc.options import Options, channel_options

PLAINTEXT_SCHEME: Final = "grpc://"
TLS_SCHEME: Final = "grpcs://"

_OTHER_RESOLVERS: Final = re.compile(r"(unix|unix-abstract|vsock|ipv[46]|xds|google-c2p):.|dns://[^/]+/.")
"""How targets begin that are not HOST:PORT."""
_HOST_AND_PORT: Final = re.compile(r"(?:dns:(?:///)?)?(?:\[(?P<ip>.*)\]|(?P<host>[\w.-]+))(?::(?P<port>[0-9]{1,5}))?")

_HINTS: Final = (
    ("certificate has expired", "the server's certificate has expired: its Secret must be renewed"),
    ("CERTIFICATE_VERIFY_FAILED", "the server's CA is not one that this client trusts: give the CA's certificate"),
    ("Hostname Verification Check failed", "the server's certificate has other names: use one, or give server_name"),
    ("WRONG_VERSION_NUMBER", "the server does not speak TLS: connect without TLS"),
    (
        "Socket closed",
        "the server closed the connection immediately: it may require TLS, or another client certificate",
    ),
)
"""Explanations of failed handshakes, by a part of gRPC's message."""
_NOT_CONNECTED: Final = ("failed to connect to all addresses", "connections to all backends failing")


@dataclass(frozen=True, slots=True)
class ClientTls:
    """TLS settings of a client."""

    ca: str | Path | None = None
    """PEM file with the CAs to trust. None: the public ones that gRPC knows."""
    certificate: str | Path | None = None
    """PEM file with the client's certificate and its chain up to the CA, if the entry requires one."""
    key: str | Path | None = None
    """PEM file with the certificate's key."""
    server_name: str = ""
    """The name that the server's certificate must have. Empty: the target's host."""

    def to_credentials(self) -> grpc.ChannelCredentials:
        """Returns the credentials in the files. Raises ArgumentError, which names the wrong file."""
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
        # If a file were wrong, gRPC's error would only say that it cannot connect.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if self.ca is not None:
            try:
                context.load_verify_locations(cafile=self.ca)
            except (ssl.SSLError, OSError) as error:
                raise ArgumentError(f"tls.ca: {self.ca} holds no certificates in PEM, or a damaged one") from error
        if self.certificate is not None and self.key is not None:
            try:
                # With no password argument, OpenSSL would ask for one at the terminal.
                context.load_cert_chain(self.certificate, self.key, password=b"")
            except (ssl.SSLError, OSError) as error:
                raise ArgumentError(
                    f"tls.certificate: {self.certificate} and {self.key} must be a PEM certificate and its key, "
                    "which has no passphrase"
                ) from error


@dataclass(frozen=True, slots=True)
class ChannelArguments:
    """The arguments of a channel."""

    target: str
    """Target in gRPC's form."""
    credentials: grpc.ChannelCredentials | None
    """None means plaintext."""
    options: Options


def _is_target(address: str) -> bool:
    """Returns whether gRPC can connect to it. gRPC itself takes a larger port modulo 65,536, and calls what is no
    address unavailable."""
    if _OTHER_RESOLVERS.match(address):
        return " " not in address
    found = _HOST_AND_PORT.fullmatch(address)
    if found is None or found["ip"] is not None:
        # IPv6 may lack brackets, and the port with them.
        try:
            ipaddress.IPv6Address(address if found is None else found["ip"])
        except ValueError:
            return False
    return found is None or found["port"] is None or 0 < int(found["port"]) < 1 << 16


def plan_connection(
    target: str,
    *,
    tls: ClientTls | bool | None = None,
    credentials: grpc.ChannelCredentials | None = None,
    options: Options | None = None,
) -> ChannelArguments:
    """Returns the connection for a client's arguments.

    Raises ArgumentError if they contradict one another, or a file is wrong.
    """
    if target.startswith(("http://", "https://")):
        scheme = PLAINTEXT_SCHEME if target.startswith("http://") else TLS_SCHEME
        raise ArgumentError(f"{target} is HTTP, and a pipeline speaks gRPC: begin it with {scheme}")
    plain = target.startswith(PLAINTEXT_SCHEME)
    secure = target.startswith(TLS_SCHEME)
    address = target.removeprefix(PLAINTEXT_SCHEME if plain else TLS_SCHEME)
    if not _is_target(address):
        raise ArgumentError(f"{target} is not HOST:PORT, with a port from 1 to 65535")
    used = channel_options() if options is None else options
    if credentials is not None and tls is not None:
        raise ArgumentError("tls and credentials both say how to connect; give one")
    if plain and (tls or credentials is not None):
        raise ArgumentError(f"{target} is plaintext; for TLS begin it with {TLS_SCHEME}")
    if secure and tls is False:
        raise ArgumentError(f"{target} is TLS; for plaintext begin it with {PLAINTEXT_SCHEME}")
    if credentials is not None:
        return ChannelArguments(address, credentials, used)
    if not (tls or secure):
        return ChannelArguments(address, None, used)
    wanted = tls if isinstance(tls, ClientTls) else ClientTls()
    if wanted.server_name:
        used = (*used, ("grpc.ssl_target_name_override", wanted.server_name))
    return ChannelArguments(address, wanted.to_credentials(), used)


def explain_refusal(message: str) -> str:
    """Returns gRPC's error message, and for a failed connection the most likely cause, if it is known."""
    if not any(words in message for words in _NOT_CONNECTED):
        return message
    hint = next((hint for words, hint in _HINTS if words in message), None)
    return message if hint is None else f"{message} ({hint})"


def _read(field: str, path: str | Path) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ArgumentError(f"tls.{field}: cannot read {path}: {error.strerror}") from error
