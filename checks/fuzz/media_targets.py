"""Fuzz targets for media from clients: headers, decoders and the resampler, all run in this process.

An input is a small valid medium with some bytes overwritten, so that code behind a checksum or a magic number is
reached too. As in a stage, headers are checked first. The limits are small enough for a million runs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import get_args

import numpy as np
from av.error import FFmpegError

from omni_proto.media_headers.image import ImageHeader
from omni_proto.media_headers.video import VideoHeader
from omni_proto.stage_config import Limits, MediaLimits
from omni_stage.decoding.audio import AudioRules, decode_audio
from omni_stage.decoding.decode import UndecodableError, decode_image
from omni_stage.decoding.resample import resample, resample_blocks
from omni_stage.decoding.video import decode_audio_track, decode_video
from omni_stage.errors import InvalidRequestError, RequestTooLargeError
from omni_stage.service.media.planning import check_media, judge_medium
from omni_stage.service.media.slots import MediaKind, MediaRules, MediaSlot
from support.media.hostile_media import CORPUS, TAKEN
from support.media.videos import encode_video
from support.stages.scripted_stages import ScriptedComponent

RULES = MediaRules(
    Limits(),
    MediaLimits(
        max_image_pixels=1 << 16,
        max_image_scans=4,
        max_audio_seconds=2,
        max_video_seconds=3,
        max_video_pixels=1 << 15,
        max_video_frames=100,
        max_decoded_bytes=1 << 23,
    ),
    ScriptedComponent(),
    4096,
)
DAMAGE = (OSError, SyntaxError, ValueError, RuntimeError, EOFError, OverflowError, TypeError, KeyError, IndexError)
MAX_SEED_BYTES = 20_000
VIDEO_FORMS = (
    ("mp4", "libx264", "aac"),
    ("webm", "libvpx-vp9", "libopus"),
    ("matroska", "libx264", "libopus"),
    ("mov", "mpeg4", "aac"),
)


@cache
def seeds(*, kind: MediaKind) -> tuple[bytes, ...]:
    """Returns small valid media. Images and audio come from the corpus. Videos are encoded here, with six tiny frames,
    because those of the corpus are larger."""
    if kind == "video":
        return tuple(encode_video(*form, frames=6, width=48, height=32) for form in VIDEO_FORMS)
    made = (medium.make() for medium in CORPUS if medium.fate == TAKEN and medium.kind == kind)
    return tuple(data for data in made if len(data) <= MAX_SEED_BYTES)


def mutate(data: bytes, *, kind: MediaKind) -> bytes:
    """Returns a seed, truncated and overwritten as the input says.

    The input's first byte selects the seed, and the next two give its new length (0: not truncated). Then every three
    bytes are a position (two bytes) and the new byte.
    """
    known = seeds(kind=kind)
    if not data:
        return b""
    result = bytearray(known[data[0] % len(known)])
    if cut := int.from_bytes(data[1:3], "big"):
        del result[cut:]
    for at in range(3, len(data) - 2, 3):
        position = int.from_bytes(data[at : at + 2], "big")
        if position < len(result):
            result[position] = data[at + 2]
    return bytes(result)


def decode(data: bytes, *, kind: MediaKind) -> None:
    slot = MediaSlot("f", kind, "", data, None, len(data))
    try:
        slot = judge_medium(slot, RULES)
        check_media([slot], RULES)
    except (InvalidRequestError, RequestTooLargeError):
        return
    header = slot.header
    try:
        if isinstance(header, VideoHeader):
            decode_both(data, header, slot)
        elif isinstance(header, ImageHeader):
            out = np.zeros((header.height, header.width, 3), np.uint8)
            decode_image(data, header.media_type.removeprefix("image/").upper(), out)
        elif header is not None:
            room = np.zeros(slot.samples, np.float32)
            count, damage = decode_audio(data, header.media_type, audio_rules(header.seconds), room)
            if not 0 <= damage <= 1:
                raise AssertionError("an impossible share is damaged")
            if not 0 < count <= room.size or not np.isfinite(room).all():
                raise AssertionError("decoded audio is empty, too long or not finite")
    except UndecodableError:
        return
    except (*DAMAGE, FFmpegError):
        # Pillow, soundfile and PyAV raise these errors for damaged media. A decoder process treats them all alike.
        return


def audio_rules(seconds: float) -> AudioRules:
    return AudioRules(16_000, seconds, RULES.media.max_audio_rate_hz, RULES.media.max_audio_channels)


def decode_both(data: bytes, header: VideoHeader, slot: MediaSlot) -> None:
    """Decodes the frames and the audio of a video."""
    if slot.frames is None:
        raise AssertionError("an accepted video has no plan for its frames")
    seen = np.zeros((slot.frames.count, slot.frames.height, slot.frames.width, 3), np.uint8)
    count, _ = decode_video(
        data, header.media_type, seconds=header.seconds, max_frames=RULES.media.max_video_frames, out=seen
    )
    heard = np.zeros(header.audio_samples, np.float32)
    samples, _ = decode_audio_track(data, header.media_type, audio_rules(header.seconds), heard)
    if not 2 <= count <= len(seen) or not samples <= heard.size or not np.isfinite(heard).all():
        raise AssertionError("a decoded video has too few or too many frames, or audio that is too long or not finite")


def image(data: bytes) -> None:
    """Decodes a mutated image."""
    decode(mutate(data, kind="image"), kind="image")


def audio(data: bytes) -> None:
    """Decodes mutated audio."""
    decode(mutate(data, kind="audio"), kind="audio")


def video(data: bytes) -> None:
    """Decodes a mutated MP4, WebM, Matroska or QuickTime file."""
    decode(mutate(data, kind="video"), kind="video")


def raw_media(data: bytes) -> None:
    """Decodes arbitrary bytes behind each format's magic number, and behind none."""
    for magic in (
        b"",
        b"\x89PNG\r\n\x1a\n",
        b"\xff\xd8\xff",
        b"RIFF\0\0\0\0WAVE",
        b"fLaC",
        b"\0\0\0\x08ftypisom",
        b"\x1a\x45\xdf\xa3",
        *(b"GIF89a", b"RIFF\0\0\0\0WEBP", b"OggS\0\2", b"\xff\xfb\x90\x64", b"\xff\xf1\x50\x80", b"ID3\3\0\0\0\0\0\0"),
    ):
        for kind in get_args(MediaKind):
            decode(magic + data, kind=kind)


def resampling(data: bytes) -> None:
    """Resamples from any rate that a header may give, in blocks of any sizes."""
    if len(data) < 8:
        return
    rate = 4000 + int.from_bytes(data[:3], "big") % 188_001
    to = (16_000, 24_000, 8_000)[data[3] % 3]
    samples = np.frombuffer(data[4:], np.int8).astype(np.float32) / 128
    cuts = sorted(int(cut) % samples.size for cut in data[4 : 4 + data[3] % 5])
    whole = resample(samples, rate, to)
    parts = resample_blocks(np.split(samples, cuts), rate, to)
    if whole.size != -(-samples.size * to // rate) and rate != to:
        raise AssertionError("resampled audio has the wrong length")
    if not np.allclose(whole, parts, atol=1e-5) or not np.isfinite(whole).all() or np.abs(whole).max() > 4:
        raise AssertionError("resampled audio depends on the blocks, or is too loud or not finite")


TARGETS: tuple[Callable[[bytes], None], ...] = (image, audio, video, raw_media, resampling)
