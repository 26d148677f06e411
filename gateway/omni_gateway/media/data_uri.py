"""Decodes media that the request itself contains, as base64 or data: URIs. Pure functions."""

from __future__ import annotations

import binascii
from collections.abc import Sequence
from typing import Final

from omni_gateway.errors import InvalidMediaError, TooLargeError

IMAGE_TYPES: Final = ("image/png", "image/jpeg", "image/jpg")
"""image/jpg is not registered, but widely used: many programs take a file's suffix for its type."""
AUDIO_TYPES: Final = (
    *("audio/wav", "audio/x-wav", "audio/wave", "audio/vnd.wave", "audio/flac", "audio/x-flac"),
    *("audio/mpeg", "audio/mp3", "audio/ogg", "audio/opus"),
)
"""Registered and common names. Only the bytes decide what the audio is."""
VIDEO_TYPES: Final = ("video/mp4", "video/webm", "video/x-matroska", "video/quicktime")


def decode_base64(text: str, *, param: str, max_bytes: int) -> bytes:
    """Returns the decoded bytes. Raises TooLargeError, before decoding, and InvalidMediaError."""
    if len(text) * 3 // 4 > max_bytes + 3:
        raise TooLargeError(f"{param} holds more than {max_bytes} bytes, the limit for one file.", param=param)
    try:
        data = binascii.a2b_base64(text, strict_mode=True)
    except ValueError as error:
        raise InvalidMediaError(f"{param} is not base64.", param=param) from error
    if not data:
        raise InvalidMediaError(f"{param} is empty.", param=param)
    return data


def read_data_uri(url: str, types: Sequence[str], *, param: str, max_bytes: int) -> bytes:
    """Returns the decoded bytes of a data: URI, e.g. data:image/png;base64,...

    Raises TooLargeError; InvalidMediaError, also if its media type is not in `types`.
    """
    head, comma, body = url.partition(",")
    kind, *options = head.removeprefix("data:").split(";")
    if not comma or "base64" not in options:
        raise InvalidMediaError(f"{param} must be data:{types[0]};base64,...", param=param)
    if kind.lower() not in types:
        raise InvalidMediaError(f"{param} must be of the type {' or '.join(types)}.", param=param)
    return decode_base64(body, param=param, max_bytes=max_bytes)
