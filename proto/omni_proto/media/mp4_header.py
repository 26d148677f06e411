"""Reads the boxes of an MP4 or QuickTime file that describe its tracks. Standard library only."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from omni_proto.media.container import Container
from omni_proto.media.header_error import MAX_SECTIONS, MediaHeaderError, too_many_sections

MAX_RUN: Final = 1 << 14
"""Maximum number of samples in one run of a fragment. Recorders write about a second at a time."""
_CONTAINERS: Final = frozenset({b"moov", b"trak", b"mdia", b"minf", b"stbl", b"mvex", b"moof", b"traf"})


def read_boxes(view: memoryview) -> Container:
    """Returns the tracks of an MP4 or QuickTime file. Raises MediaHeaderError; struct.error or IndexError if the header
    is cut off."""
    file, fragments = Container(), _Fragments()
    for kind, body in _boxes(view):
        if kind == b"trak":
            file.begin_track()
        elif kind == b"tkhd":
            file.track.quarter_turns = _read_turns(body)
            (file.track.number,) = struct.unpack_from(">I", body, 20 if body[0] == 1 else 12)
        elif kind == b"mvhd":
            scale, duration = _read_duration(body)
            file.seconds = duration / scale
        elif kind == b"mdhd":
            file.track.scale, duration = _read_duration(body)
            file.track.seconds = duration / file.track.scale
        elif kind == b"hdlr":
            (handler,) = struct.unpack_from(">4s", body, 8)
            # In QuickTime a track has a second handler, for its data.
            if not file.tracks or file.track.kind:
                continue
            file.track.kind = {b"vide": "picture", b"soun": "audio"}.get(handler, "other")
        elif kind == b"stsd" and file.track.kind == "picture":
            file.track.width, file.track.height = struct.unpack_from(">HH", body, 8 + 32)
        elif kind in (b"stsz", b"stz2"):
            (file.track.frames,) = struct.unpack_from(">I", body, 8)
        else:
            fragments.read(kind, body)
    for track in file.tracks:
        ends, frames = fragments.ends.get(track.number, 0), fragments.frames.get(track.number, 0)
        if ends and track.scale:
            # The movie's own header describes only what precedes the first fragment, usually nothing.
            track.seconds = max(track.seconds, ends / track.scale)
        track.frames += frames
    return file


class _Fragments:
    """The end of each track, in ticks of its clock, and its frames, by the fragments of a recording."""

    def __init__(self) -> None:
        self.ends: dict[int, int] = {}
        self.frames: dict[int, int] = {}
        self._defaults: dict[int, int] = {}
        self._track = self._duration = 0

    def read(self, kind: bytes, body: memoryview) -> None:
        if kind == b"trex":
            number, _, duration = struct.unpack_from(">III", body, 4)
            self._defaults[number] = duration
        elif kind == b"tfhd":
            flags, self._track = struct.unpack_from(">II", body)
            place = 8 + (8 if flags & 1 else 0) + (4 if flags & 2 else 0)
            self._duration = self._defaults.get(self._track, 0)
            if flags & 8:
                (self._duration,) = struct.unpack_from(">I", body, place)
        elif kind == b"tfdt":
            (begin,) = struct.unpack_from(">Q" if body[0] == 1 else ">I", body, 4)
            self.ends[self._track] = begin
        elif kind == b"trun":
            flags, count = struct.unpack_from(">II", body)
            self.frames[self._track] = self.frames.get(self._track, 0) + count
            ticks = count * self._duration
            if flags & 0x100:
                step = 4 * (flags >> 8 & 15).bit_count()
                first = 8 + (4 if flags & 1 else 0) + (4 if flags & 4 else 0)
                if count > MAX_RUN or not step:
                    raise MediaHeaderError(f"a fragment of the video has more than {MAX_RUN} samples")
                ticks = sum(struct.unpack_from(">I", body, first + step * index)[0] for index in range(count))
            self.ends[self._track] = self.ends.get(self._track, 0) + ticks


def _boxes(view: memoryview) -> Iterator[tuple[bytes, memoryview]]:
    """Yields the kind and content of each box; the boxes inside a container follow it."""
    open_ends = [(0, len(view))]
    for _ in range(MAX_SECTIONS):
        while open_ends and open_ends[-1][0] + 8 > open_ends[-1][1]:
            open_ends.pop()
        if not open_ends:
            return
        position, end = open_ends.pop()
        size, kind = struct.unpack_from(">I4s", view, position)
        begin = position + 8
        if size == 1:
            (size,) = struct.unpack_from(">Q", view, begin)
            begin += 8
        until = end if size == 0 else position + size
        if until < begin:
            raise MediaHeaderError("a box of the video is smaller than its own header")
        # A box that is cut off may hold the samples; the decoder checks those.
        until = min(until, end)
        open_ends.append((until, end))
        yield kind, view[begin:until]
        if kind in _CONTAINERS:
            open_ends.append((begin, until))
    raise too_many_sections("video")


def _read_duration(body: memoryview) -> tuple[int, int]:
    """Returns the ticks per second and the duration in ticks, 0 if it is unknown."""
    form = ">IQ" if body[0] == 1 else ">II"
    scale, duration = struct.unpack_from(form, body, 20 if body[0] == 1 else 12)
    if not scale:
        raise MediaHeaderError("the video's time scale is 0")
    unknown = (1 << 64 if body[0] == 1 else 1 << 32) - 1
    return scale, 0 if duration == unknown else duration


def _read_turns(body: memoryview) -> int:
    """Returns the quarter turns of a track's matrix; 0 if it mirrors, or turns by another angle."""
    place = 52 if body[0] == 1 else 40
    if len(body) < place + 20:
        return 0
    a, b, _, c, d = ((number > 0) - (number < 0) for number in struct.unpack_from(">5i", body, place))
    return {(0, 1, -1, 0): 1, (-1, 0, 0, -1): 2, (0, -1, 1, 0): 3}.get((a, b, c, d), 0)
