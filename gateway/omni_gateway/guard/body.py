"""Reads the body of a request, with limits on its size, on the time until it has arrived, and on the memory that it
will use."""

from __future__ import annotations

import asyncio
from typing import Final

from starlette.types import Receive

from omni_gateway.errors import InvalidRequestError, TooLargeError
from omni_gateway.guard.budget import Share

VALUE_BYTES: Final = 1024
"""Memory that a JSON value may use besides its text: as a Python object, as a field of a model, and in pydantic's
error messages. Measured with lists of empty lists and objects, and with unknown fields."""


class BodyGoneError(Exception):
    """The client disconnected while its body was read."""


class BodyReader:
    """Reads bodies."""

    def __init__(self, max_bytes: int, max_seconds: float) -> None:
        self._max_bytes = max_bytes
        self._max_seconds = max_seconds

    async def read(self, receive: Receive, length: str | None, share: Share) -> bytearray:
        """Returns the body. length is the header content-length. share counts the body and the values in it.

        Raises TooLargeError if the body exceeds the limit (before it reads anything, if content-length says so),
        InvalidRequestError if the body takes too long, UnavailableError if memory is short, and BodyGoneError if the
        client disconnects.
        """
        if length is not None and length.isdecimal() and int(length) > self._max_bytes:
            raise self._too_large()
        body = bytearray()
        try:
            async with asyncio.timeout(self._max_seconds):
                more = True
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise BodyGoneError
                    piece = message.get("body", b"")
                    if len(body) + len(piece) > self._max_bytes:
                        raise self._too_large()
                    share.add(len(piece))
                    body += piece
                    more = message.get("more_body", False)
        except TimeoutError as error:
            raise InvalidRequestError(
                f"The body did not arrive within {self._max_seconds:g} s.", code="body_timeout"
            ) from error
        share.add(VALUE_BYTES * count_values(body))
        return body

    def _too_large(self) -> TooLargeError:
        return TooLargeError(f"The body is larger than {self._max_bytes} bytes, the limit.")


def count_values(body: bytearray) -> int:
    """Returns an upper bound of the number of values inside a JSON object or list, without parsing it.

    Counts commas and opening brackets: each value follows one of its own. Base64 contains neither.
    """
    return sum(body.count(mark) for mark in (b",", b"[", b"{"))
