"""Reads the header of an image, audio or video file without decoding it.

Stages check media against their limits before they decode anything. Clients announce the decoded size of media that
they send in chunks. The cost is bounded: at most MAX_SECTIONS sections are visited, and the bytes between them are
skipped in C. Standard library only.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final, Literal

from omni_proto.media_headers.audio import AudioHeader, read_audio_header, sniff_audio
from omni_proto.media_headers.container import OTHER_BYTES, MediaHeaderError, name_other
from omni_proto.media_headers.image import ImageHeader, read_image_header, sniff_image
from omni_proto.media_headers.video import VideoHeader, read_video_header, sniff_video

Kind = Literal["image", "audio", "video"]
FORMATS: Final[Mapping[Kind, str]] = {
    "image": "PNG, JPEG, WebP or GIF",
    "audio": "WAV, FLAC, MP3, AAC, Ogg (Opus, Vorbis), WebM, M4A, AIFF, AU, CAF or AMR",
    "video": "MP4, QuickTime, WebM or Matroska",
}
"""The formats of each kind, for messages."""


def sniff(data: bytes | bytearray | memoryview, kind: Kind) -> str | None:
    """Returns the media type of a whole file by its content, or None if it is none of this kind.

    An MP4, WebM or Matroska file is audio or video, as the kind says.
    """
    view = memoryview(data)
    if kind == "image":
        return sniff_image(bytes(view[:12]))
    return sniff_audio(view) if kind == "audio" else sniff_video(view)


def describe_wrong(data: bytes | bytearray | memoryview, kind: Kind) -> str:
    """Returns what is wrong with a file that `sniff` does not take for this kind, to follow its name in a message."""
    view = memoryview(data)
    if not view:
        return "is empty"
    others = (sniff(view, other) for other in FORMATS if other != kind)
    found = name_other(bytes(view[:OTHER_BYTES])) or next((name for name in others if name), "")
    return f"is not {FORMATS[kind]}" + (f": it is {found}; convert it" if found else "")


def read_header(data: bytes | bytearray | memoryview, kind: Kind) -> ImageHeader | AudioHeader | VideoHeader:
    """Returns the header of a complete file. Raises MediaHeaderError, whose message quotes no content."""
    media_type = sniff(data, kind)
    view = memoryview(data)
    if media_type is None:
        raise MediaHeaderError(f"the {kind} {describe_wrong(view, kind)}")
    try:
        if kind == "video":
            return read_video_header(view)
        return read_image_header(media_type, view) if kind == "image" else read_audio_header(media_type, view)
    except (struct.error, IndexError) as error:
        raise MediaHeaderError(f"the header of the {media_type} is cut off") from error
