"""Base64 of audio that arrives in pieces. Pure."""

from __future__ import annotations

import base64
from typing import Final

_GROUP: Final = 6
"""Bytes are encoded in multiples of this: base64 needs no padding after 3 bytes, and a 16-bit sample has 2."""


class Base64Pieces:
    """Encodes pieces of a file so that their texts together are the base64 of the file.

    Clients that collect a stream join these texts: openai-python's `stream()`, and LangChain, when chunks are added.
    Padding inside the joined text would end it for most decoders.
    """

    def __init__(self) -> None:
        self._rest = b""

    def add(self, data: bytes) -> str:
        """Returns the text of the next piece, which may be empty: up to 5 bytes wait for the next one."""
        data = self._rest + data
        end = len(data) - len(data) % _GROUP
        self._rest = data[end:]
        return base64.b64encode(data[:end]).decode()

    def finish(self, data: bytes) -> str:
        """Returns the text of the bytes that waited and of the last piece."""
        return base64.b64encode(self._rest + data).decode()
