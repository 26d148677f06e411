"""Fetches images, audio and videos over https, if the settings allow it: no redirects, with limits on size and time.

The host name is resolved once. All its addresses must be public, and the connection goes to one of them. So a name that
resolves to another address a moment later (DNS rebinding) has no effect.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Final
from urllib.parse import SplitResult

import httptools

from omni_gateway.errors import GatewayError, InvalidMediaError, TooLargeError
from omni_gateway.media.addresses import check_url, is_public

PORT: Final = 443
_READ: Final = 64 << 10
_MAX_HEADER_BYTES: Final = 32 << 10


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
    found = await asyncio.get_running_loop().getaddrinfo(host, PORT, type=socket.SOCK_STREAM)
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
        self.complete = True

    def too_large(self) -> TooLargeError:
        """Returns the error for a body above the limit."""
        return TooLargeError(f"{self._param} is larger than {self.max_bytes} bytes.", param=self._param)


async def _get(parts: SplitResult, address: str, types: Sequence[str], answer: _Answer, param: str) -> bytes:
    host = parts.hostname or ""
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if any(not 33 <= ord(char) <= 126 for char in path + host):
        raise InvalidMediaError(f"{param} must be percent-encoded.", param=param)
    reader, writer = await asyncio.open_connection(
        address, PORT, ssl=ssl.create_default_context(), server_hostname=host, limit=_READ
    )
    try:
        accepted = ", ".join(types)
        head = f"GET {path} HTTP/1.1\r\nhost: {host}\r\naccept: {accepted}\r\n"
        # Some servers, such as Wikimedia's, refuse requests without a user-agent.
        head += "user-agent: omnipipeline-gateway\r\nconnection: close\r\n\r\n"
        writer.write(head.encode())
        await writer.drain()
        parser = httptools.HttpResponseParser(answer)
        seen = 0
        while not answer.complete:
            piece = await reader.read(_READ)
            if not piece:
                break
            seen += len(piece)
            if seen > answer.max_bytes + _MAX_HEADER_BYTES:
                raise answer.too_large()
            try:
                parser.feed_data(piece)
            except httptools.HttpParserCallbackError as error:
                raise error.__context__ if isinstance(error.__context__, GatewayError) else error from None
        if parser.get_status_code() != 200:
            raise InvalidMediaError(
                f"{param} answered {parser.get_status_code()}; redirects are not followed.", param=param
            )
        if answer.is_cut:
            raise InvalidMediaError(f"{param} ended before it was complete.", param=param)
        return bytes(answer.body)
    finally:
        writer.close()
