"""Reads the elements of a WebM or Matroska file that describe its tracks. Standard library only."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import Final

from omni_proto.media.container import Container
from omni_proto.media.header_error import MAX_SECTIONS, MediaHeaderError, too_many_sections

_SEGMENT, _INFO, _SCALE, _DURATION = 0x18538067, 0x1549A966, 0x2AD7B1, 0x4489
_TRACKS, _ENTRY, _TYPE, _VIDEO, _WIDTH, _HEIGHT = 0x1654AE6B, 0xAE, 0x83, 0xE0, 0xB0, 0xBA
_CLUSTER: Final = 0x1F43B675
_TIME, _SIMPLE_BLOCK, _BLOCK_GROUP, _BLOCK = 0xE7, 0xA3, 0xA0, 0xA1
_BEGIN_CLUSTER: Final = re.compile(rb"\x1f\x43\xb6\x75[\x01-\xff].{0,7}?\xe7[\x81-\x88]", re.DOTALL)
_SLICE: Final = 1 << 20
_NESTED: Final = frozenset({_SEGMENT, _INFO, _TRACKS, _ENTRY, _VIDEO})


def read_elements(view: memoryview) -> Container:
    """Returns the tracks of a WebM or Matroska file. Raises MediaHeaderError; struct.error or IndexError if the header
    is cut off."""
    file = Container()
    scale, duration = 1_000_000, 0.0
    for kind, body in _elements(view):
        if kind == _ENTRY:
            file.begin_track()
        elif kind == _TYPE:
            file.track.kind = {1: "picture", 2: "audio"}.get(_number(body), "other")
        elif kind == _WIDTH:
            file.track.width = _number(body)
        elif kind == _HEIGHT:
            file.track.height = _number(body)
        elif kind == _SCALE:
            scale = _number(body)
        elif kind == _DURATION:
            (duration,) = struct.unpack(">f" if len(body) == 4 else ">d", body[:8])
    if duration != duration or duration < 0:
        raise MediaHeaderError("the video's length makes no sense")
    if not duration:
        duration = _last_time(view)
    file.seconds = duration * scale / 1e9
    return file


def _last_time(view: memoryview) -> int:
    """Returns the time of the last block, in ticks: the length of a recording that was streamed; 0 if there is none."""
    for start in range(max(0, len(view) - _SLICE), -_SLICE, -_SLICE):
        clusters = list(_BEGIN_CLUSTER.finditer(view[max(0, start) : start + _SLICE + 32]))
        if clusters:
            return _cluster_end(view, max(0, start) + clusters[-1].start())
    return 0


def _cluster_end(view: memoryview, position: int) -> int:
    begin = latest = 0
    _, position = _variable(view, position, keep_marker=True)
    _, position = _variable(view, position, keep_marker=False)
    for _ in range(MAX_SECTIONS):
        if position + 8 > len(view):
            break
        kind, position = _variable(view, position, keep_marker=True)
        size, position = _variable(view, position, keep_marker=False)
        if kind == _TIME:
            begin = _number(view[position : position + size])
        elif kind in (_SIMPLE_BLOCK, _BLOCK) and position + 4 <= len(view):
            _, after = _variable(view, position, keep_marker=False)
            latest = max(latest, *struct.unpack_from(">h", view, after))
        if kind != _BLOCK_GROUP:
            position += size
    return begin + latest + 1


def _elements(view: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yields the id and content of each element up to the first cluster; nested elements follow their parent."""
    position = 0
    for _ in range(MAX_SECTIONS):
        if position >= len(view):
            return
        kind, position = _variable(view, position, keep_marker=True)
        size, position = _variable(view, position, keep_marker=False)
        if kind == _CLUSTER:
            return
        yield kind, view[position : position + min(size, len(view))]
        if kind not in _NESTED:
            position += size
    raise too_many_sections("video")


def _variable(view: memoryview, position: int, *, keep_marker: bool) -> tuple[int, int]:
    """Returns the integer at position, which takes 1 to 8 bytes, and the position after it."""
    length = 9 - view[position].bit_length()
    if length > 8 or position + length > len(view):
        raise MediaHeaderError("an element of the video has no length")
    value = int.from_bytes(view[position : position + length], "big")
    return value if keep_marker else value & ~(1 << 7 * length), position + length


def _number(body: memoryview) -> int:
    if len(body) > 8:
        raise MediaHeaderError("a number in the video's header is too long")
    return int.from_bytes(body, "big")
