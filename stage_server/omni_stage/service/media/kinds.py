"""The kinds of media, and the frames of a video that the model sees. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

MediaKind = Literal["image", "audio", "video"]

FRAME_COPIES: Final = 2
"""Copies of the frames that the model sees, at 3 bytes per pixel: one in shared memory, one in the stage server."""


@dataclass(frozen=True, slots=True)
class FramePlan:
    """The maximum number of a video's frames that the model sees, and their size in pixels."""

    width: int
    height: int
    count: int
    is_heard: bool
    """Whether the video's audio is decoded too."""

    @property
    def bytes(self) -> int:
        """Bytes of all frames as RGB."""
        return 3 * self.width * self.height * self.count
