"""Fetches images, audio and videos over https, if the settings allow it: no redirects, with limits on size and time.

The host name is resolved once. All its addresses must be public, and the connection goes to one of them. So a name that
resolves to another address a moment later (DNS rebinding) has no effect.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Callable, Sequence
from functools import cache
from typing import Final
from urllib.parse import SplitResult, urlsplit

import httptools

from omni_gateway.errors import GatewayError, InvalidMediaError, TooLargeError

_GLOBAL_UNICAST: Final = ipaddress.IPv6Network("2000::/3")
"""The only block from which IANA assigns addresses of hosts (ipv6-address-space). All others are refused: loopback,
::a.b.c.d, ::ffff:0:a.b.c.d, local NAT64 (64:ff9b:1::/48), discard-only, SRv6 (5f00::/16), unique local, link-local,
site-local (fec0::/10), multicast and unassigned ones."""
_NOT_PUBLIC_6: Final = tuple(
    ipaddress.IPv6Network(network)
    for network in (
        "2001::/23",  # IETF protocol assignments: Teredo, benchmarking, ORCHID and others
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4, whose relays are switched off (RFC 7526)
        "2620:4f:8000::/48",  # AS112
        "3fff::/20",  # documentation
    )
)
"""The blocks of IANA's IPv6 Special-Purpose Address Registry (iana-ipv6-special-registry) inside 2000::/3."""
_TRANSLATED: Final = (ipaddress.IPv6Network("::ffff:0:0/96"), ipaddress.IPv6Network("64:ff9b::/96"))
"""Addresses that mean an IPv4 address, in their last 32 bits: mapped ones, and those of NAT64's well-known prefix."""
_ISATAP: Final = 0x5EFE
"""The upper half of ISATAP's interface identifiers ::0:5efe:a.b.c.d and ::200:5efe:a.b.c.d (RFC 5214), without the bits
that say whether the IPv4 address is unique, or of a group."""
_ISATAP_MASK: Final = 0xFCFF_FFFF
PORT: Final = 443
_READ: Final = 64 << 10
_MAX_HEADER_BYTES: Final = 32 << 10


def check_url(url: str, *, param: str) -> SplitResult:
    """Returns the parts of a URL. Raises InvalidMediaError unless it is https, on port 443, with a host and no user."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise InvalidMediaError(f"{param} is not a valid URL.", param=param) from error
    if parts.scheme.lower() != "https" or not parts.hostname or port not in (None, 443) or parts.username is not None:
        raise InvalidMediaError(f"{param} must be https://HOST/..., on port 443 and without a user.", param=param)
    return parts


def is_public(address: str) -> bool:
    """Returns whether an IP address belongs to a host of the public internet.

    An IPv4 address inside an IPv6 address is judged as well, because a translator or a tunnel may deliver to it.
    """
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(found, ipaddress.IPv4Address):
        return not any(found in network for network in _NOT_PUBLIC)
    low = int(found) & 0xFFFF_FFFF
    if any(found in network for network in _TRANSLATED):
        return is_public(str(ipaddress.IPv4Address(low)))
    if found not in _GLOBAL_UNICAST or any(found in network for network in _NOT_PUBLIC_6):
        return False
    return (int(found) >> 32 & _ISATAP_MASK) != _ISATAP or is_public(str(ipaddress.IPv4Address(low)))


_NOT_PUBLIC: Final = tuple(
    ipaddress.IPv4Network(network)
    for network in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",  # private use
        "100.64.0.0/10",  # shared address space of carriers
        "127.0.0.0/8",  # loopback
        "169.254.0.0/16",  # link-local, metadata services of clouds
        "172.16.0.0/12",  # private use
        "192.0.0.0/24",  # IETF protocol assignments
        "192.0.2.0/24",  # documentation
        "192.31.196.0/24",  # AS112
        "192.52.193.0/24",  # AMT
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",  # private use
        "192.175.48.0/24",  # AS112
        "198.18.0.0/15",  # benchmarking
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, broadcast
    )
)
"""IANA's IPv4 Special-Purpose Address Registry (iana-ipv4-special-registry), with those of its blocks that are
reachable from everywhere but serve no content, and multicast (RFC 5771)."""


async def fetch_media(
    url: str, types: Sequence[str], *, param: str, max_bytes: int, max_seconds: float, hold: Callable[[int], None]
) -> bytes:
    """Returns the body of an answer with status 200. `types` are sent in the accept header, but not checked. hold
    counts bytes before they are kept.

    Raises InvalidMediaError, TooLargeError, and the errors of hold.
    """
    parts = check_url(url, param=param)
    try:
        async with asyncio.timeout(max_seconds):
            address = await resolve(parts.hostname or "", param=param)
            return await _get(parts, address, types, _Answer(param, max_bytes, hold), param)
    except TimeoutError as error:
        raise InvalidMediaError(f"{param} did not answer within {max_seconds:g} s.", param=param) from error
    except (OSError, ssl.SSLError, httptools.HttpParserError) as error:
        raise InvalidMediaError(f"{param} cannot be fetched.", param=param) from error


async def resolve(host: str, *, param: str) -> str:
    """Returns an address of the host. Raises OSError; InvalidMediaError if any of its addresses is not public."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, PORT, type=socket.SOCK_STREAM)
    except UnicodeError as error:  # a label that is empty or too long
        raise InvalidMediaError(f"{param} names no valid host.", param=param) from error
    addresses = [str(item[4][0]) for item in found]
    if not addresses or not all(is_public(address) for address in addresses):
        raise InvalidMediaError(f"{param} is not at a public address.", param=param)
    return addresses[0]


class _Answer:
    """The answer that httptools parses; it calls the on_* methods."""

    def __init__(self, param: str, max_bytes: int, hold: Callable[[int], None]) -> None:
        self._param = param
        self.max_bytes = max_bytes
        self._hold = hold
        self.parser = httptools.HttpResponseParser(self)
        self.body = bytearray()
        self.complete = False
        self._says_its_end = False

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        self._says_its_end |= name in (b"content-length", b"transfer-encoding")
        if name == b"content-length" and value.isdigit() and int(value) > self.max_bytes:
            raise self.too_large()

    @property
    def is_cut(self) -> bool:
        """Whether the connection ended before the body was complete."""
        return self._says_its_end and not self.complete

    def on_body(self, piece: bytes) -> None:
        if len(self.body) + len(piece) > self.max_bytes:
            raise self.too_large()
        self._hold(len(piece))
        self.body += piece

    def on_message_complete(self) -> None:
        self.complete = self.parser.get_status_code() >= 200  # before the answer, there may be hints such as 103

    def too_large(self) -> TooLargeError:
        """Returns the error for a body above the limit."""
        return TooLargeError(f"{self._param} is larger than {self.max_bytes} bytes.", param=self._param)


@cache
def trusted() -> ssl.SSLContext:
    """Returns the settings of all connections. Reading the system's CAs takes tens of milliseconds."""
    return ssl.create_default_context()


async def _get(parts: SplitResult, address: str, types: Sequence[str], answer: _Answer, param: str) -> bytes:
    host = parts.hostname or ""
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if any(not 33 <= ord(char) <= 126 for char in path + host):
        raise InvalidMediaError(f"{param} must be percent-encoded, and its host be in ASCII (xn--...).", param=param)
    tls = await asyncio.to_thread(trusted)
    reader, writer = await asyncio.open_connection(address, PORT, ssl=tls, server_hostname=host, limit=_READ)
    try:
        accepted = ", ".join(types)
        head = f"GET {path} HTTP/1.1\r\nhost: {host}\r\naccept: {accepted}\r\n"
        # Some servers, such as Wikimedia's, refuse requests without a user-agent.
        head += "user-agent: omnipipeline-gateway\r\nconnection: close\r\n\r\n"
        writer.write(head.encode())
        await writer.drain()
        seen = 0
        while not answer.complete:
            piece = await reader.read(_READ)
            if not piece:
                break
            seen += len(piece)
            if seen > answer.max_bytes + _MAX_HEADER_BYTES:
                raise answer.too_large()
            try:
                answer.parser.feed_data(piece)
            except httptools.HttpParserCallbackError as error:
                raise error.__context__ if isinstance(error.__context__, GatewayError) else error from None
        if (status := answer.parser.get_status_code()) != 200:
            raise InvalidMediaError(f"{param} answered {status}; redirects are not followed.", param=param)
        if answer.is_cut:
            raise InvalidMediaError(f"{param} ended before it was complete.", param=param)
        return bytes(answer.body)
    finally:
        writer.close()
