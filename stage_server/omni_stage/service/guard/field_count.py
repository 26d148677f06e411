"""Counts the fields of a request in its bytes, before protobuf parses them and creates an object for each.

A message of 8 MiB may hold four million empty parts. Parsing them would block the event loop for half a second and take
hundreds of megabytes, before admission. The count descends only into messages whose fields repeat (_REPEATING), and
stops at the bound. Source: protobuf's wire format.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

MAX_FIELDS: Final = 8192
"""Maximum number of fields of a request. A chat of 1,024 messages with one part each has about 3,100 fields."""
_SMALL_BYTES: Final = 16 << 10
"""The fields of a smaller message are not counted: a field takes at least two bytes, so the message parses quickly."""

_Tree = Mapping[int, Any]
_PACKED: Final[_Tree] = {0: {}}
"""Marks a field of packed numbers. Each byte of such a field counts as a field of its own."""
_START: Final[_Tree] = {
    2: {1: {}},  # chat.messages
    4: {2: {3: _PACKED}},  # tensors.tensors, and their row_shape
    5: {2: {12: _PACKED}},  # sampling, with its values and their stop_token_ids
    7: _PACKED,  # modalities
    12: {3: _PACKED},  # prompt_embeds.row_shape
    17: {4: {}},  # structured_output.choice.texts
    18: {},  # conversation
}
_REPEATING: Final[_Tree] = {1: _START, 14: {}}
"""Field numbers to descend into: start, and tensors with its chunks. Token ids are not counted: protobuf holds them as
an array, and their number is checked before any is read."""
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class _TooManyError(Exception):
    """There are too many fields, or the bytes use an encoding that no client sends."""


def has_too_many_fields(data: bytes, maximum: int = MAX_FIELDS) -> bool:
    """Returns whether a GenerateRequest has more than `maximum` fields. Messages of at most 16 KiB are not counted.

    Also returns True for wire types that no client uses, such as groups. Returns False for bytes that protobuf cannot
    parse.
    """
    if len(data) <= _SMALL_BYTES:
        return False
    try:
        _count(data, 0, len(data), _REPEATING, maximum)
    except _TooManyError:
        return True
    except IndexError:
        return False
    return False


def _count(data: bytes, position: int, end: int, tree: _Tree, left: int) -> int:
    """Count the fields from `position` to `end`, of which there may be `left`. Returns how many more may follow.

    Raises _TooManyError, and IndexError if the bytes end early.
    """
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
            if below is _PACKED:
                left -= size
                if left < 0:
                    raise _TooManyError
            elif below is not None:
                left = _count(data, position, min(position + size, end), below, left)
            position += size
        else:
            # A group. protobuf skips unknown groups, but this function cannot find where a group ends.
            raise _TooManyError
    return left


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """Returns the varint at `position`, of at most ten bytes, and the position after it. Raises IndexError."""
    value = 0
    for shift in range(0, 70, 7):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise IndexError
