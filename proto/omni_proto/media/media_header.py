"""Reads the header of an image, audio or video file without decoding it.

Stages check media against their limits before they decode anything. Clients announce the decoded size of media that
they send in chunks. The cost is bounded: at most MAX_SECTIONS sections are visited, and the bytes between them are
skipped in C. Standard library only.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from omni_proto.errors import OmniProtoError
from omni_proto.media.video_header import VideoHeader, VideoHeaderError, read_video_header, sniff_video

MAX_SECTIONS: Final = 4096
"""Maximum number of chunks in a PNG or WAV, or segments in a JPEG. Photographs with depth maps have about a hundred."""
BYTES_PER_PIXEL: Final = 3
BYTES_PER_SAMPLE: Final = 4

_PNG: Final = b"\x89PNG\r\n\x1a\n"
_WAVE_FORMATS: Final = {1: "PCM", 3: "IEEE float", 6: "A-law", 7: "u-law"}
_WAVE_EXTENSIBLE: Final = 0xFFFE
_JPEG_MARKER: Final = re.compile(rb"\xff[\x02-\xcf\xd8-\xfe]")
"""Any marker except restart markers inside a scan. Stuffed zeros and fill bytes are not markers."""
_SLICE: Final = 128 << 10
_SOI, _EOI, _SOS = 0xD8, 0xD9, 0xDA
_SOF: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}


class MediaHeaderError(OmniProtoError, ValueError):
    """The bytes are not an image, audio or video of a supported format, or their header makes no sense."""


@dataclass(frozen=True, slots=True)
class ImageHeader:
    """Header of a PNG or JPEG."""

    media_type: str
    width: int
    height: int
    frames: int = 1
    """Number of frames; more than 1 for an animated PNG."""
    scans: int = 1
    """Scans of a JPEG, each a pass over the picture; a progressive JPEG has about ten."""

    @property
    def pixels(self) -> int:
        """Width times height."""
        return self.width * self.height

    @property
    def decoded_bytes(self) -> int:
        """Bytes of one frame decoded to RGB."""
        return self.pixels * BYTES_PER_PIXEL


@dataclass(frozen=True, slots=True)
class AudioHeader:
    """Header of a WAV or FLAC."""

    media_type: str
    rate_hz: int
    channels: int
    frames: int
    """Samples of each channel."""

    @property
    def decoded_bytes(self) -> int:
        """Bytes of all channels decoded to float32."""
        return self.frames * self.channels * BYTES_PER_SAMPLE


def sniff(data: bytes | bytearray | memoryview) -> str | None:
    """Returns the media type by the first bytes, or None if it is unknown."""
    head = bytes(data[:12])
    if head[:8] == _PNG:
        return "image/png"
    if head[:3] == b"\xff\xd8\xff":
        return "image/jpeg"
    if head[:4] == b"RIFF" and head[8:12] == b"WAVE":
        return "audio/wav"
    if head[:4] == b"fLaC":
        return "audio/flac"
    return sniff_video(head + bytes(data[12:64]))


def read_header(data: bytes | bytearray | memoryview) -> ImageHeader | AudioHeader | VideoHeader:
    """Returns the header of a complete PNG, JPEG, WAV, FLAC, MP4, QuickTime, WebM or Matroska file.

    Raises MediaHeaderError, whose message quotes no content.
    """
    kind = sniff(data)
    view = memoryview(data)
    try:
        if kind is not None and kind.startswith("video/"):
            return read_video_header(view)
        if kind == "image/png":
            return _read_png(view)
        if kind == "image/jpeg":
            return _read_jpeg(view)
        if kind == "audio/wav":
            return _read_wav(view)
        if kind == "audio/flac":
            return _read_flac(view)
    except VideoHeaderError as error:
        raise MediaHeaderError(str(error)) from error
    except (struct.error, IndexError) as error:
        raise MediaHeaderError(f"the header of the {kind} is cut off") from error
    raise MediaHeaderError("the bytes are not PNG, JPEG, WAV, FLAC, MP4, QuickTime, WebM or Matroska")


def _read_png(view: memoryview) -> ImageHeader:
    length, kind, width, height = struct.unpack_from(">I4sII", view, 8)
    if kind != b"IHDR" or length != 13 or not 0 < width < 1 << 31 or not 0 < height < 1 << 31:
        raise MediaHeaderError("the PNG does not begin with its size")
    frames, position = 1, 33
    for _ in range(MAX_SECTIONS):
        if position + 8 > len(view):
            raise MediaHeaderError("the PNG has no picture")
        length, kind = struct.unpack_from(">I4s", view, position)
        if kind == b"IHDR":
            raise MediaHeaderError("the PNG states its size twice")
        if kind == b"IDAT":
            return ImageHeader("image/png", width, height, frames)
        if kind == b"acTL":
            frames = max(frames, *struct.unpack_from(">I", view, position + 8))
        position += 12 + length
    raise _too_many("PNG")


def _read_jpeg(view: memoryview) -> ImageHeader:
    size: tuple[int, int] | None = None
    scans = 0
    for marker, position in _jpeg_segments(view):
        if marker in _SOF:
            if size is not None:
                raise MediaHeaderError("the JPEG states its size twice")
            height, width = struct.unpack_from(">HH", view, position + 3)
            size = (width, height)
        elif marker == _SOS:
            if size is None:
                raise MediaHeaderError("the JPEG has no size")
            scans += 1
    if size is None or not scans:
        raise MediaHeaderError("the JPEG has no picture")
    if 0 in size:
        raise MediaHeaderError("the JPEG does not state its height")
    return ImageHeader("image/jpeg", *size, scans=scans)


def _jpeg_segments(view: memoryview) -> Iterator[tuple[int, int]]:
    """Yields each segment's marker and the position of its length, up to the end of the picture, as libjpeg does."""
    end = 2
    for _ in range(MAX_SECTIONS):
        position = _find_marker(view, end)
        if position is None or view[position - 1] == _EOI:
            return
        marker = view[position - 1]
        if marker == _SOI:
            raise MediaHeaderError("the JPEG begins twice")
        (length,) = struct.unpack_from(">H", view, position)
        if length < 2:
            raise MediaHeaderError("a segment of the JPEG has no length")
        yield marker, position
        end = position + length
    raise _too_many("JPEG")


def _find_marker(view: memoryview, position: int) -> int | None:
    """Returns the position after the next marker, or None. Searches in slices, so that other threads can run."""
    for start in range(position, len(view), _SLICE):
        if found := _JPEG_MARKER.search(view, start, start + _SLICE + 1):
            return found.end()
    return None


def _read_wav(view: memoryview) -> AudioHeader:
    layout: tuple[int, int, int] | None = None
    position = 12
    for _ in range(MAX_SECTIONS):
        if position + 8 > len(view):
            raise MediaHeaderError("the WAV has no samples")
        kind, length = struct.unpack_from("<4sI", view, position)
        position += 8
        if kind == b"fmt ":
            if layout is not None:
                raise MediaHeaderError("the WAV states its format twice")
            layout = _read_wave_format(view[position : position + length])
        elif kind == b"data":
            if layout is None:
                raise MediaHeaderError("the WAV does not state its format")
            channels, rate, width = layout
            # Programs that stream do not know the length and write the largest number, or 0.
            there = len(view) - position
            frames = (min(length, there) if length else there) // (channels * width)
            return AudioHeader("audio/wav", rate, channels, frames)
        position += length + length % 2
    raise _too_many("WAV")


def _read_wave_format(chunk: memoryview) -> tuple[int, int, int]:
    """Returns the channels, the rate in Hz and the bytes per sample."""
    tag, channels, rate, _, align, bits = struct.unpack_from("<HHIIHH", chunk)
    if tag == _WAVE_EXTENSIBLE:
        (tag,) = struct.unpack_from("<H", chunk, 24)
    if tag not in _WAVE_FORMATS:
        raise MediaHeaderError(f"the WAV is compressed; {', '.join(_WAVE_FORMATS.values())} are accepted")
    width = -(-bits // 8)
    if not channels or not rate or not 1 <= width <= 8 or align != channels * width:
        raise MediaHeaderError("the format of the WAV makes no sense")
    return channels, rate, width


def _read_flac(view: memoryview) -> AudioHeader:
    (head,) = struct.unpack_from(">I", view, 4)
    if head & 0x7FFFFFFF != 34:
        raise MediaHeaderError("the FLAC does not begin with its format")
    # 20 bits: rate; 3: channels - 1; 5: bits per sample - 1; 36: samples.
    (packed,) = struct.unpack_from(">Q", view, 18)
    rate, channels, frames = packed >> 44, (packed >> 41 & 7) + 1, packed & (1 << 36) - 1
    if not rate:
        raise MediaHeaderError("the FLAC has no rate")
    if not frames:
        raise MediaHeaderError("the FLAC does not say how long it is; write it to a file instead of a pipe")
    return AudioHeader("audio/flac", rate, channels, frames)


def _too_many(what: str) -> MediaHeaderError:
    return MediaHeaderError(f"the {what} has more than {MAX_SECTIONS} sections; save it without its metadata")
