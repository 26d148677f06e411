"""Finds the frames of MP3 and of AAC in ADTS: streams without a header of their own. Standard library only."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import islice
from typing import Final

_SEARCHED: Final = 1 << 20
"""Bytes at the beginning in which the first frame must lie, after tags."""
_MAX_CANDIDATES: Final = 4096
_SYNC: Final = re.compile(rb"\xff[\xe0-\xff]")
_TAG: Final = re.compile(
    rb"ID3[\x02-\x04][\x00-\x10].[\x00-\x7f]{4}|APETAGEX....(?=.{12}\x00{8})|TAG(?=.{125}(?:ID3|\xff[\xe0-\xff]|TAG|APE|\Z))",
    re.DOTALL,
)
_APE_BYTES: Final = 32
_APE_HAS_HEADER: Final = 0xA0
"""Bits of the highest byte of an APE tag's flags: that it has a header, and that this is it."""
_RATES: Final = (44_100, 48_000, 32_000)
_KBITS: Final = {
    # By (is MPEG 1, layer): index 1 to 14.
    (True, 1): (32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448),
    (True, 2): (32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384),
    (True, 3): (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (False, 1): (32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256),
    (False, 2): (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
    (False, 3): (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}


def begins_mpeg(view: memoryview) -> str | None:
    """Returns audio/mpeg or audio/aac if two frames in a row lie near the beginning, else None."""
    for found in islice(_SYNC.finditer(view[: _SEARCHED + 2]), _MAX_CANDIDATES):
        for kind, measure in _MEASURES.items():
            at = found.start()
            length = measure(view, at)
            if length and (measure(view, at + length) or at + length >= len(view) - 1):
                return kind
    return None


def count_frames(media_type: str, view: memoryview) -> tuple[int, int]:
    """Returns the bytes of frames, and the bytes that are neither frames nor tags: damage, or zeros.

    Only frames that another frame, a tag or the end follows are counted. Zeros at the end are not: recorders reserve
    more than they use.
    """
    measure = _MEASURES[media_type]
    end = len(bytes(view).rstrip(b"\0"))
    frames = lost = position = run = 0
    while position < end:
        length = measure(view, position)
        after = position + length
        if length and (after >= end - 1 or measure(view, after) or _TAG.match(view, after)):
            frames += length
            position, run = after, 0
        elif tag := _TAG.match(view, position):
            if tag[0][:3] == b"APE" and not view[position + 23] & _APE_HAS_HEADER:
                lost -= min(run, _tag_bytes(view, tag) - _APE_BYTES)  # the tag lies before this, its only end
                position += _APE_BYTES
            else:
                position += _tag_bytes(view, tag)
            run = 0
        else:
            found = _NEXT.search(view, position + 1)
            following = found.start() if found else end
            lost += following - position
            run += following - position
            position = following
    return frames, lost


_NEXT: Final = re.compile(rb"\xff[\xe0-\xff]|ID3|APETAGEX|TAG")


def skip_id3(view: memoryview) -> memoryview:
    """Returns what follows the ID3v2 tags at the beginning of a file."""
    for _ in range(16):
        tag = _TAG.match(view) if bytes(view[:3]) == b"ID3" else None
        if tag is None:
            break
        view = view[_tag_bytes(view, tag) :]
    return view


def _tag_bytes(view: memoryview, tag: re.Match[bytes]) -> int:
    start = tag.start()
    if tag[0][:3] == b"ID3":
        size = 0
        for byte in view[start + 6 : start + 10]:
            size = size << 7 | byte
        return 10 + size + (10 if view[start + 5] & 0x10 else 0)
    if tag[0][:3] == b"TAG":
        return 128
    return _APE_BYTES + int.from_bytes(view[start + 12 : start + 16], "little")


def _mp3_bytes(view: memoryview, at: int) -> int:
    """Returns the length of the MPEG audio frame that begins here, 0 if none does."""
    if at + 4 > len(view) or view[at] != 0xFF or view[at + 1] & 0xE0 != 0xE0:
        return 0
    version, layer = view[at + 1] >> 3 & 3, 4 - (view[at + 1] >> 1 & 3)
    bits, rate = view[at + 2] >> 4, view[at + 2] >> 2 & 3
    if version == 1 or layer == 4 or rate == 3 or not 1 <= bits <= 14:
        return 0
    rate_hz = _RATES[rate] >> (0 if version == 3 else 1 if version == 2 else 2)
    kbits, padding = _KBITS[version == 3, layer][bits - 1], view[at + 2] >> 1 & 1
    if layer == 1:
        return (12_000 * kbits // rate_hz + padding) * 4
    return (144_000 if version == 3 or layer == 2 else 72_000) * kbits // rate_hz + padding


def _adts_bytes(view: memoryview, at: int) -> int:
    """Returns the length of the ADTS frame that begins here, 0 if none does."""
    if at + 7 > len(view) or view[at] != 0xFF or view[at + 1] & 0xF6 != 0xF0 or view[at + 2] >> 2 & 15 > 12:
        return 0
    length = (view[at + 3] & 3) << 11 | view[at + 4] << 3 | view[at + 5] >> 5
    return length if length > 7 else 0


_MEASURES: Final[dict[str, Callable[[memoryview, int], int]]] = {"audio/mpeg": _mp3_bytes, "audio/aac": _adts_bytes}
