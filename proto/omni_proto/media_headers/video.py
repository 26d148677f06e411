"""Reads the header of a video without decoding it: MP4 and QuickTime boxes, WebM and Matroska elements.

The cost is bounded: at most MAX_SECTIONS boxes or elements are visited, and none is read whole. Standard library only.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from omni_proto.media_headers.container import LATE_S, MAX_SECTIONS, Container, MediaHeaderError, too_many_sections

FRAMES_PER_SECOND: Final = 2
"""Rate at which frames are sampled for the model."""
FRAMES_PER_GRID: Final = 2
"""Frames that become one grid of tokens: a second of video."""
MIN_FRAMES: Final = 4
MAX_FRAMES: Final = 768
FRAME_PIXELS: Final = (128 * 32 * 32, 768 * 32 * 32)
"""Minimum and maximum pixels of a frame for the model. Frames are scaled to this range as they are decoded."""
AUDIO_RATE_HZ: Final = 16_000

_BRANDED: Final = b"ftyp"
_UNBRANDED: Final = (b"moov", b"mdat", b"wide", b"free", b"skip")
"""The boxes with which QuickTime files begin that are older than the box that names the format."""
_EBML: Final = b"\x1a\x45\xdf\xa3"


@dataclass(frozen=True, slots=True)
class VideoHeader:
    """Header of an MP4, QuickTime, WebM or Matroska file. Of several picture tracks, only the first is described."""

    media_type: str
    width: int
    height: int
    seconds: float
    """The longest of the durations that its tracks state, or that of the file. Of a recording that was streamed: the
    time of its end."""
    has_audio: bool
    tracks: int
    frames: int = 0
    """Frames of the picture track; 0 if the header does not state them (WebM, Matroska)."""
    quarter_turns: int = 0
    """Clockwise turns of 90 degrees, 0 to 3, after which encoded frames are upright. 0 for WebM and Matroska."""

    @property
    def pixels(self) -> int:
        """Pixels of one frame as it is encoded."""
        return self.width * self.height

    @property
    def kept_frames(self) -> int:
        """Maximum number of frames that are kept for the model."""
        return sample_count(self.frames or MAX_FRAMES, self.seconds)

    @property
    def audio_samples(self) -> int:
        """Maximum number of audio samples at AUDIO_RATE_HZ. Includes half a second more than the header states, because
        the audio track may begin or end late."""
        return int((self.seconds + 0.5) * AUDIO_RATE_HZ) if self.has_audio else 0

    @property
    def decoded_bytes(self) -> int:
        """Maximum bytes once decoded: 3 per pixel of each kept frame in its scaled size, and 4 per audio sample."""
        minimum, maximum = FRAME_PIXELS
        return 3 * self.kept_frames * min(max(self.pixels, minimum), maximum) + 4 * self.audio_samples


def sample_count(frames: int, seconds: float) -> int:
    """Returns how many of a video's frames are kept, always an even number: two per second, at least 4, at most 768.

    A short video keeps at most the frames that it has, so a video of a single frame gives 0. `smart_nframes` in
    qwen_omni_utils and sample_frames in transformers' Qwen2VLVideoProcessor give the same result.
    """
    even_maximum = min(MAX_FRAMES, frames) // 2 * 2
    wanted = min(max(seconds * FRAMES_PER_SECOND, MIN_FRAMES), even_maximum, frames)
    return int(wanted // 2 * 2)


def sniff_video(data: bytes | bytearray | memoryview) -> str | None:
    """Returns the media type by the first 64 bytes, or None if it is unknown."""
    head = bytes(data[:12])
    if head[4:8] == _BRANDED:
        return "video/quicktime" if head[8:12] == b"qt  " else "video/mp4"
    if head[4:8] in _UNBRANDED:
        return "video/quicktime"
    if head[:4] == _EBML:
        return "video/webm" if b"webm" in bytes(data[:64]) else "video/x-matroska"
    return None


def read_video_header(data: bytes | bytearray | memoryview) -> VideoHeader:
    """Returns the header of a whole video file. Raises MediaHeaderError, whose message quotes no content."""
    kind = sniff_video(data)
    view = memoryview(data)
    try:
        if kind in ("video/mp4", "video/quicktime"):
            return _finish(kind, read_boxes(view))
        if kind is not None:
            return _finish(kind, read_elements(view))
    except (struct.error, IndexError) as error:
        raise MediaHeaderError(f"the header of the {kind} is cut off") from error
    raise MediaHeaderError("the bytes are not MP4, QuickTime, WebM or Matroska")


def read_audio_seconds(data: bytes | bytearray | memoryview) -> float:
    """Returns how long the audio of an MP4, QuickTime, WebM or Matroska file is; 0 if the file does not state it.

    Raises MediaHeaderError, also if there is no audio; struct.error or IndexError if the header is cut off.
    """
    view = memoryview(data)
    file = read_boxes(view) if bytes(view[4:8]) == _BRANDED else read_elements(view)
    lengths = [track.seconds for track in file.tracks if track.kind == "audio"]
    if not lengths:
        raise MediaHeaderError("the file has no audio track")
    seconds = lengths[0] or file.seconds
    if not 0 <= seconds < 1 << 31:
        raise MediaHeaderError("the audio's length makes no sense")
    return seconds


def _finish(media_type: str, file: Container) -> VideoHeader:
    pictures = [track for track in file.tracks if track.kind == "picture"]
    if not pictures:
        raise MediaHeaderError("the file has no picture track; send it as audio")
    first = pictures[0]
    # The file's own length counts what an edit list puts before its tracks.
    seconds = max(track.seconds for track in file.tracks) or file.seconds
    if not seconds:
        raise MediaHeaderError(
            "the video does not say how long it is; write it whole: ffmpeg -i IN -c copy -movflags +faststart OUT.mp4"
        )
    if not first.width or not first.height:
        raise MediaHeaderError("the video does not say how large its picture is")
    if not 0 < seconds < 1 << 31:
        raise MediaHeaderError("the video's length makes no sense")
    return VideoHeader(
        media_type,
        first.width,
        first.height,
        seconds,
        any(track.kind == "audio" for track in file.tracks),
        len(file.tracks),
        first.frames,
        first.quarter_turns,
    )


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
            begins = fragments.begins.get(track.number, 0) / track.scale
            late = begins if begins >= LATE_S and not track.seconds else 0.0
            track.seconds = max(track.seconds, ends / track.scale - late)
        track.frames += frames
    return file


class _Fragments:
    """The begin and the end of each track, in ticks of its clock, and its frames, by the fragments of a recording."""

    def __init__(self) -> None:
        self.begins: dict[int, int] = {}
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
            offset = 8 + (8 if flags & 1 else 0) + (4 if flags & 2 else 0)
            self._duration = self._defaults.get(self._track, 0)
            if flags & 8:
                (self._duration,) = struct.unpack_from(">I", body, offset)
        elif kind == b"tfdt":
            (begin,) = struct.unpack_from(">Q" if body[0] == 1 else ">I", body, 4)
            self.begins.setdefault(self._track, begin)
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
    offset = 52 if body[0] == 1 else 40
    if len(body) < offset + 20:
        return 0
    a, b, _, c, d = ((number > 0) - (number < 0) for number in struct.unpack_from(">5i", body, offset))
    return {(0, 1, -1, 0): 1, (-1, 0, 0, -1): 2, (0, -1, 1, 0): 3}.get((a, b, c, d), 0)


_SEGMENT, _INFO, _SCALE, _DURATION = 0x18538067, 0x1549A966, 0x2AD7B1, 0x4489
_TRACKS, _ENTRY, _TYPE, _VIDEO, _WIDTH, _HEIGHT = 0x1654AE6B, 0xAE, 0x83, 0xE0, 0xB0, 0xBA
_CLUSTER: Final = 0x1F43B675
_TIME, _SIMPLE_BLOCK, _BLOCK_GROUP, _BLOCK = 0xE7, 0xA3, 0xA0, 0xA1
_BEGIN_CLUSTER: Final = re.compile(rb"\x1f\x43\xb6\x75[\x01-\xff].{0,7}?\xe7[\x81-\x88]", re.DOTALL)
_BEFORE_TIME: Final = 4
"""Elements of a cluster of which one is its time: a checksum and padding may come before it."""
_SLICE: Final = 1 << 20
_NESTED: Final = frozenset({_SEGMENT, _INFO, _TRACKS, _ENTRY, _VIDEO})


def read_elements(view: memoryview) -> Container:
    """Returns the tracks of a WebM or Matroska file. Raises MediaHeaderError; struct.error or IndexError if the header
    is cut off."""
    file = Container()
    scale, duration, begin = 1_000_000, 0.0, 0
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
        elif kind == _CLUSTER:
            begin = _cluster_begin(body)
    if duration != duration or duration < 0:
        raise MediaHeaderError("the video's length makes no sense")
    late = begin if begin * scale >= LATE_S * 1e9 else 0
    if not duration or late:
        # Of a piece of a longer recording, some programs state the time of the end, and others the length.
        found = max(0, _last_time(view) - late)
        stated = (one for one in (duration - late, duration) if abs(one - found) * scale < LATE_S * 1e9)
        duration = next(stated, found)
    file.seconds = duration * scale / 1e9
    return file


def _cluster_begin(body: memoryview) -> int:
    """Returns the time of a cluster, in ticks."""
    position = 0
    for _ in range(_BEFORE_TIME):
        if position >= len(body):
            break
        kind, position = _variable(body, position, keep_marker=True)
        size, position = _variable(body, position, keep_marker=False)
        if kind == _TIME:
            return _number(body[position : position + size])
        position += size
    return 0


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
    """Yields the id and content of each element up to and with the first cluster; nested ones follow their parent."""
    position = 0
    for _ in range(MAX_SECTIONS):
        if position >= len(view):
            return
        kind, position = _variable(view, position, keep_marker=True)
        size, position = _variable(view, position, keep_marker=False)
        yield kind, view[position : position + min(size, len(view))]
        if kind == _CLUSTER:
            return
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
