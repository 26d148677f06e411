"""How many fields a request has, counted on its bytes: protobuf would first make an object of each.

A message of 8 MiB may hold four million empty parts: half a second of the event loop and hundreds of megabytes, before
anything is admitted. Only what repeats is walked, and only up to the bound. Source: protobuf's encoding of the wire.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

MAX_FIELDS: Final = 8192
"""A chat of 1,024 messages with a part each has about 4,100."""
_SMALL_BYTES: Final = 16 << 10
"""Of a message whose every two bytes may be a field, and which is not worth a look."""

_Tree = Mapping[int, Any]
_REPEATING: Final[_Tree] = {1: {2: {1: {}}, 5: {2: {}}}}
"""Fields that are walked into: start.chat.messages, and start.sampling with its values."""
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class _TooManyError(Exception):
    """The bound is passed, or the bytes are of a form that nobody sends."""


def has_too_many_fields(data: bytes, most: int = MAX_FIELDS) -> bool:
    """Whether a GenerateRequest has more than `most` fields. False for bytes that are none: the parser says so."""
    if len(data) <= _SMALL_BYTES:
        return False
    try:
        _count(data, 0, len(data), _REPEATING, most)
    except _TooManyError:
        return True
    except IndexError:
        return False
    return False


def _count(data: bytes, position: int, end: int, tree: _Tree, left: int) -> int:
    """How many more fields there may be. Raises _TooManyError, and IndexError where the bytes end early."""
    while position < end:
        left -= 1
        if left < 0:
            raise _TooManyError
        tag, position = _varint(data, position)
        kind = tag & 7
        if kind == _VARINT:
            _, position = _varint(data, position)
        elif kind == _FIXED64:
            position += 8
        elif kind == _FIXED32:
            position += 4
        elif kind == _BYTES:
            size, position = _varint(data, position)
            below = tree.get(tag >> 3)
            if below is not None:
                left = _count(data, position, min(position + size, end), below, left)
            position += size
        else:
            # Groups: protobuf skips unknown ones, so that what follows them would be missed here.
            raise _TooManyError
    return left


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """A number of at most ten bytes, and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise IndexError
