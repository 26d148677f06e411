"""The media of a prompt, with the frames of a video that the model sees, and the rules for them. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from omni_proto.media_headers.audio import AudioHeader
from omni_proto.media_headers.image import ImageHeader
from omni_proto.media_headers.video import VideoHeader
from omni_proto.stage_config import Limits, MediaLimits
from omni_stage.models.component import TakesMedia

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


@dataclass(frozen=True, slots=True)
class MediaSlot:
    """One medium of a prompt: where its bytes are and, once they have been read, their header."""

    field: str
    kind: MediaKind
    media_type: str
    data: bytes | bytearray
    media_id: int | None
    size: int
    """Bytes as encoded."""
    declared_bytes: int = 0
    """Decoded size in bytes, as stated in Start; 0 if Start states none, and for media inside Start."""
    header: ImageHeader | AudioHeader | VideoHeader | None = None
    frames: FramePlan | None = None
    """The frame plan of a video, once its header is known."""
    samples: int = 0
    """Maximum number of samples of audio at the model's rate, once its header is known."""
    tokens: int = 0
    held_bytes: int = 0
    """Maximum number of bytes that the stage holds for this medium until the request ends."""
    audio_input_bytes: int = 0
    """The part of held_bytes that is for the engine's input made from its audio."""


@dataclass(frozen=True, slots=True)
class MediaRules:
    """The limits, and the abilities of the model, against which media are checked."""

    limits: Limits
    media: MediaLimits
    takes: TakesMedia
    max_model_len: int
    reads_video: bool = True
    """Whether the component reads video, according to its facts."""
    hear_videos: bool = False
    """Whether the audio of videos is used (ChatPrompt.use_audio_in_video)."""

    @property
    def max_audio_samples(self) -> int:
        """Maximum number of samples of one audio, at the model's rate."""
        return min(self.takes.max_audio_samples, self.media.max_audio_seconds * self.takes.audio_rate_hz)
