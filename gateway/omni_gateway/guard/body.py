"""Reads the body of a request, with limits on its size, on the time until it has arrived, and on the memory that all
bodies use together."""

from __future__ import annotations

import asyncio
from typing import Final

from starlette.types import Receive

from omni_gateway.errors import InvalidRequestError, TooLargeError, UnavailableError

IN_ALL_FACTOR: Final = 8
"""Memory that all bodies may use together, as a multiple of the largest allowed body."""


class BodyGoneError(Exception):
    """The client disconnected while its body was read."""


class BodyReader:
    """Reads bodies, and counts their total size until each is released."""

    def __init__(self, max_bytes: int, max_seconds: float) -> None:
        self._max_bytes = max_bytes
        self._max_seconds = max_seconds
        self._left = max_bytes * IN_ALL_FACTOR

    async def read(self, receive: Receive, length: str | None) -> bytes:
        """Returns the body. length is the header content-length. Call `release` with the body's size after its use.

        Raises TooLargeError, before anything is read if the header already shows it; InvalidRequestError,
        UnavailableError, BodyGoneError.
        """
        if length is not None and length.isdecimal() and int(length) > self._max_bytes:
            raise self._too_large()
        pieces: list[bytes] = []
        held = 0
        try:
            async with asyncio.timeout(self._max_seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise BodyGoneError
                    piece = message.get("body", b"")
                    held += len(piece)
                    self._left -= len(piece)
                    if held > self._max_bytes:
                        raise self._too_large()
                    if self._left < 0:
                        raise UnavailableError("Too many large requests at once; try again.", retry_after_s=1)
                    pieces.append(piece)
                    if not message.get("more_body", False):
                        return b"".join(pieces)
        except TimeoutError as error:
            self.release(held)
            raise InvalidRequestError(
                f"The body did not arrive within {self._max_seconds:g} s.", code="body_timeout"
            ) from error
        except BaseException:
            self.release(held)
            raise

    def release(self, size: int) -> None:
        """Note that a body of that size is no longer in memory."""
        self._left += size

    def _too_large(self) -> TooLargeError:
        return TooLargeError(f"The body is larger than {self._max_bytes} bytes, the limit.")
