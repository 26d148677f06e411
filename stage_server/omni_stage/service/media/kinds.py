"""The kinds of media; for videos also their limits, and the frames that the model sees. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from omni_proto.stage_config import MediaLimits
from omni_proto.video_header import VideoHeader
from omni_stage.errors import InvalidMediaError

MediaKind = Literal["image", "audio", "video"]

MEDIA_TYPES: Final[dict[MediaKind, tuple[str, ...]]] = {
    "image": ("image/png", "image/jpeg"),
    "audio": ("audio/wav", "audio/flac"),
    "video": ("video/mp4", "video/webm", "video/x-matroska", "video/quicktime"),
}
FRAME_COPIES: Final = 2
"""Copies of the frames that the model sees, at 3 bytes a pixel: in shared memory, and in the stage server."""


@dataclass(frozen=True, slots=True)
class FramePlan:
    """The frames of a video that the model sees, at most."""

    width: int
    height: int
    count: int
    is_heard: bool
    """Whether its audio is decoded too."""

    @property
    def bytes(self) -> int:
        """Bytes of all frames as RGB."""
        return 3 * self.width * self.height * self.count


def check_video(header: VideoHeader, field: str, limits: MediaLimits) -> None:
    """Check a video against its limits. Raises InvalidMediaError."""
    if header.pixels > limits.max_video_pixels:
        raise InvalidMediaError(
            f"a frame of the video has {header.pixels} pixels, at most {limits.max_video_pixels} are decoded "
            "(media.maxVideoPixels); scale it down",
            field=field,
            limit=f"{limits.max_video_pixels} pixels",
        )
    if header.seconds > limits.max_video_seconds:
        raise InvalidMediaError(
            f"the video is longer than {limits.max_video_seconds} s (media.maxVideoSeconds); send a part of it",
            field=field,
            limit=f"{limits.max_video_seconds} s",
        )
    if header.frames > limits.max_video_frames:
        raise InvalidMediaError(
            f"the video has {header.frames} frames, at most {limits.max_video_frames} are decoded "
            "(media.maxVideoFrames); lower its frame rate",
            field=field,
            limit=f"{limits.max_video_frames} frames",
        )
    if header.frames == 1:
        raise InvalidMediaError("the video has one frame; send it as an image", field=field, limit="2 frames")
