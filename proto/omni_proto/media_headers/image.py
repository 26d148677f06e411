"""Reads the header of an image without decoding it: PNG, JPEG, WebP and GIF. Standard library only."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from omni_proto.media_headers.container import MAX_SECTIONS, MediaHeaderError, too_many_sections

BYTES_PER_PIXEL: Final = 3

_JPEG_MARKER: Final = re.compile(rb"\xff[\x02-\xcf\xd8-\xfe]")
"""Any marker except restart markers inside a scan. Stuffed zeros and fill bytes are not markers."""
_SLICE: Final = 128 << 10
_SOI, _EOI, _SOS = 0xD8, 0xD9, 0xDA
_SOF: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_GIF_IMAGE, _GIF_EXTENSION = 0x2C, 0x21


@dataclass(frozen=True, slots=True)
class ImageHeader:
    """Header of an image. Of an animation, only the first frame is decoded."""

    media_type: str
    width: int
    height: int
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


def sniff_image(head: bytes) -> str | None:
    """Returns the media type by the first 12 bytes, or None if it is unknown."""
    if head[:8] == b"\x89PNG\r\n\x1a\n":
        return "image/png"
    if head[:3] == b"\xff\xd8\xff":
        return "image/jpeg"
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "image/webp"
    if head[:6] in (b"GIF87a", b"GIF89a"):
        return "image/gif"
    return None


def read_image_header(media_type: str, view: memoryview) -> ImageHeader:
    """Returns the header of an image of this type. Raises MediaHeaderError; struct.error or IndexError if it is cut
    off."""
    return _READERS[media_type](view)


def _read_png(view: memoryview) -> ImageHeader:
    length, kind, width, height = struct.unpack_from(">I4sII", view, 8)
    if kind != b"IHDR" or length != 13 or not 0 < width < 1 << 31 or not 0 < height < 1 << 31:
        raise MediaHeaderError("the PNG does not begin with its size")
    position = 33
    for _ in range(MAX_SECTIONS):
        if position + 8 > len(view):
            raise MediaHeaderError("the PNG has no picture")
        length, kind = struct.unpack_from(">I4s", view, position)
        if kind == b"IHDR":
            raise MediaHeaderError("the PNG states its size twice")
        if kind == b"IDAT":
            return ImageHeader("image/png", width, height)
        position += 12 + length
    raise too_many_sections("PNG")


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
    raise too_many_sections("JPEG")


def find_jpeg_end(view: memoryview) -> int | None:
    """Returns where the marker begins that ends the picture of a JPEG; None if there is none."""
    end = 2
    for _, position in _jpeg_segments(view):
        (length,) = struct.unpack_from(">H", view, position)
        end = position + length
    found = _find_marker(view, end)
    return found - 2 if found is not None and view[found - 1] == _EOI else None


def _find_marker(view: memoryview, position: int) -> int | None:
    """Returns the position after the next marker, or None. Searches in slices, so that other threads can run."""
    for start in range(position, len(view), _SLICE):
        if found := _JPEG_MARKER.search(view, start, start + _SLICE + 1):
            return found.end()
    return None


def _read_webp(view: memoryview) -> ImageHeader:
    kind = bytes(view[12:16])
    if kind == b"VP8X":  # extended: the size of the canvas, minus 1, in 24 bits each
        low, high, low_height, high_height = struct.unpack_from("<HBHB", view, 24)
        size = ((high << 16 | low) + 1, (high_height << 16 | low_height) + 1)
    elif kind == b"VP8L" and view[20] == 0x2F:  # lossless
        (packed,) = struct.unpack_from("<I", view, 21)
        size = ((packed & 0x3FFF) + 1, (packed >> 14 & 0x3FFF) + 1)
    elif kind == b"VP8 " and bytes(view[23:26]) == b"\x9d\x01\x2a":  # lossy
        width, height = struct.unpack_from("<HH", view, 26)
        size = (width & 0x3FFF, height & 0x3FFF)
    else:
        raise MediaHeaderError("the WebP does not begin with its size")
    if 0 in size:
        raise MediaHeaderError("the WebP has no size")
    return ImageHeader("image/webp", *size)


def _read_gif(view: memoryview) -> ImageHeader:
    width, height, flags = struct.unpack_from("<HHB", view, 6)
    position = 13 + (3 << (flags & 7) + 1 if flags & 0x80 else 0)
    for _ in range(MAX_SECTIONS):
        if view[position] == _GIF_IMAGE:
            left, top, across, down = struct.unpack_from("<HHHH", view, position + 1)
            # A frame may be larger than the canvas, which decoders then enlarge.
            size = (max(width, left + across), max(height, top + down))
            if 0 in (across, down):
                raise MediaHeaderError("the GIF has no size")
            return ImageHeader("image/gif", *size)
        if view[position] == _GIF_EXTENSION:
            position = _skip_blocks(view, position + 2)
        else:
            position += 1
    raise too_many_sections("GIF")


def _skip_blocks(view: memoryview, position: int) -> int:
    for _ in range(MAX_SECTIONS):
        length = view[position]
        position += 1 + length
        if not length:
            return position
    raise too_many_sections("GIF")


_READERS: Final[Mapping[str, Callable[[memoryview], ImageHeader]]] = {
    "image/png": _read_png,
    "image/jpeg": _read_jpeg,
    "image/webp": _read_webp,
    "image/gif": _read_gif,
}
