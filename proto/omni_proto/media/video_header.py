"""Reads the header of a video without decoding it: MP4, QuickTime, WebM and Matroska.

The cost is bounded: at most MAX_SECTIONS boxes or elements are visited, and none is read whole. Standard library only.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from omni_proto.media.container import Container
from omni_proto.media.header_error import MediaHeaderError
from omni_proto.media.matroska_header import read_elements
from omni_proto.media.mp4_header import read_boxes

FRAMES_PER_SECOND: Final = 2
"""Rate at which frames are sampled for the model."""
FRAMES_PER_GRID: Final = 2
"""Frames that become one grid of tokens: a second of video."""
MIN_FRAMES: Final = 4
MAX_FRAMES: Final = 768
FRAME_PIXELS: Final = (128 * 32 * 32, 768 * 32 * 32)
"""Minimum and maximum pixels of a frame for the model. Frames are scaled to this range as they are decoded."""
SOUND_RATE_HZ: Final = 16_000

_BRANDED: Final = b"ftyp"
_EBML: Final = b"\x1a\x45\xdf\xa3"


@dataclass(frozen=True, slots=True)
class VideoHeader:
    """Header of an MP4, QuickTime, WebM or Matroska file. Of several picture tracks, only the first is described."""

    media_type: str
    width: int
    height: int
    seconds: float
    """The longest of the durations that the file and its tracks state. Of a recording that was streamed: the time of
    its end."""
    has_sound: bool
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
    def sound_samples(self) -> int:
        """Maximum number of audio samples at SOUND_RATE_HZ. Includes half a second more than the header states, because
        the audio track may begin or end late."""
        return int((self.seconds + 0.5) * SOUND_RATE_HZ) if self.has_sound else 0

    @property
    def decoded_bytes(self) -> int:
        """Maximum bytes once decoded: 3 per pixel of each kept frame in its scaled size, and 4 per audio sample."""
        least, most = FRAME_PIXELS
        return 3 * self.kept_frames * min(max(self.pixels, least), most) + 4 * self.sound_samples


def sample_count(frames: int, seconds: float) -> int:
    """Returns how many of a video's frames are kept, always an even number: two per second, at least 4, at most 768.

    A short video keeps at most the frames that it has, so a video of a single frame gives 0. `smart_nframes` in
    qwen_omni_utils and sample_frames in transformers' Qwen2VLVideoProcessor give the same result.
    """
    even_most = min(MAX_FRAMES, frames) // 2 * 2
    wanted = min(max(seconds * FRAMES_PER_SECOND, MIN_FRAMES), even_most, frames)
    return int(wanted // 2 * 2)


def sniff_video(data: bytes | bytearray | memoryview) -> str | None:
    """Returns the media type by the first 64 bytes, or None if it is unknown."""
    head = bytes(data[:12])
    if head[4:8] == _BRANDED:
        return "video/quicktime" if head[8:12] == b"qt  " else "video/mp4"
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


def read_sound_seconds(data: bytes | bytearray | memoryview) -> float:
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
    seconds = max(file.seconds, *(track.seconds for track in file.tracks))
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
