"""Checks the header of one medium against the limits for its size, length and rate. Pure."""

from __future__ import annotations

from typing import Final

from omni_proto.media_headers.audio import AudioHeader
from omni_proto.media_headers.image import ImageHeader
from omni_proto.media_headers.video import VideoHeader
from omni_proto.stage_config import MediaLimits
from omni_stage.errors import InvalidMediaError

MIN_RATE_HZ: Final = 4000


def check_image(header: ImageHeader, field: str, limits: MediaLimits) -> None:
    """Check an image against its limits. Raises InvalidMediaError."""
    if header.pixels > limits.max_image_pixels:
        raise InvalidMediaError(
            f"the image has {header.pixels} pixels, at most {limits.max_image_pixels} are decoded "
            "(media.maxImagePixels); send a smaller one",
            field=field,
            limit=f"{limits.max_image_pixels} pixels",
        )
    if header.scans > limits.max_image_scans:
        raise InvalidMediaError(
            f"the image has more than {limits.max_image_scans} scans (media.maxImageScans); save it as baseline JPEG",
            field=field,
            limit=f"{limits.max_image_scans} scans",
        )


def check_audio(header: AudioHeader, field: str, limits: MediaLimits) -> None:
    """Check what a header states of audio; the decoder checks the rest. Raises InvalidMediaError."""
    if header.channels > limits.max_audio_channels:
        raise InvalidMediaError(
            f"the audio has {header.channels} channels, at most {limits.max_audio_channels} (media.maxAudioChannels); "
            "send fewer",
            field=field,
            limit=f"{limits.max_audio_channels} channels",
        )
    if header.rate_hz and not MIN_RATE_HZ <= header.rate_hz <= limits.max_audio_rate_hz:
        raise InvalidMediaError(
            f"the audio has {header.rate_hz} samples a second, {MIN_RATE_HZ} to {limits.max_audio_rate_hz} "
            "(media.maxAudioRateHz) are accepted; resample it",
            field=field,
            limit=f"{limits.max_audio_rate_hz} Hz",
        )
    if header.seconds > limits.max_audio_seconds:
        raise InvalidMediaError(
            f"the audio is longer than {limits.max_audio_seconds} s (media.maxAudioSeconds); send it in parts",
            field=field,
            limit=f"{limits.max_audio_seconds} s",
        )


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
