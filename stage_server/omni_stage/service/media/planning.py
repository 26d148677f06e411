"""Reads the headers of a request's media. Computes and checks, before decoding, how much memory and how many tokens the
media need. Pure.

Media inside Start are checked before admission. For media that follow in chunks, the stage reserves memory for the
decoded size that Start states, or for the stage's own limit if Start states none. When these media have arrived, their
headers are compared with what was reserved.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from omni_proto.media_headers import read_header
from omni_proto.media_headers.audio import BYTES_PER_SAMPLE, AudioHeader
from omni_proto.media_headers.container import MediaHeaderError
from omni_proto.media_headers.image import BYTES_PER_PIXEL, ImageHeader
from omni_proto.media_headers.video import (
    AUDIO_RATE_HZ,
    FRAME_PIXELS,
    FRAMES_PER_SECOND,
    MAX_FRAMES,
    MIN_FRAMES,
    VideoHeader,
)
from omni_proto.stage.v1 import prompt_pb2
from omni_proto.stage_config import MediaLimits
from omni_stage.decoding.decode import WORK_BYTES_PER_PIXEL
from omni_stage.errors import (
    InvalidMediaError,
    InvalidRequestError,
    PromptTooLongError,
    RequestTooLargeError,
    in_field,
)
from omni_stage.models.component import MediaCost, TakesMedia, TakesVideo
from omni_stage.service.media.slots import FRAME_COPIES, FramePlan, MediaKind, MediaRules, MediaSlot

MIN_RATE_HZ: Final = 4000
MAX_INLINE_MEDIA_BYTES: Final = 4 << 20
IMAGE_COPIES_BYTES: Final = WORK_BYTES_PER_PIXEL + 7
"""Bytes per pixel of an image until the engine's input exists: the decoder's working memory, 3 bytes in shared memory,
and 4 bytes in the stage server."""
AUDIO_COPIES: Final = 4
"""Copies of audio at the model's rate: two in the worker (in pieces, then joined), one in shared memory, and one in the
stage server."""
ENCODED_COPIES: Final = 2
"""Copies of the encoded bytes: as received, and in the shared memory that the decoder reads."""

VIDEO_WORK_BYTES_PER_PIXEL: Final = 96
"""Equal to WORK_BYTES_PER_PIXEL of omni_stage.decoding.video. That module is not imported here, because it would load
FFmpeg into this process."""
_PATCH_MARGIN: Final = 64
"""Upper bound of the pixels that rounding to patches adds to a side."""

_STATED_MARGIN_S: Final = 1
"""Seconds that compressed audio may last beyond its stated length: encoders add some at the beginning and the end."""
_MP3_BYTES_PER_SECOND: Final = 1000
"""Least bytes that a second of MP3 takes."""


def _bound(value: float, most: float, unit: str, field: str, problem: str) -> None:
    """Raises InvalidMediaError, with the problem as its message, for more than `most` units of something."""
    if value > most:
        raise InvalidMediaError(problem, field=field, limit=f"{most} {unit}")


def check_image(header: ImageHeader, field: str, limits: MediaLimits) -> None:
    """Check an image against its limits. Raises InvalidMediaError."""
    pixels, scans = limits.max_image_pixels, limits.max_image_scans
    problem = f"the image has {header.pixels} pixels, at most {pixels} are decoded (media.maxImagePixels)"
    _bound(header.pixels, pixels, "pixels", field, f"{problem}; send a smaller one")
    problem = f"the image has more than {scans} scans (media.maxImageScans); save it as baseline JPEG"
    _bound(header.scans, scans, "scans", field, problem)


def check_audio(header: AudioHeader, field: str, limits: MediaLimits) -> None:
    """Check what a header states of audio; the decoder checks the rest. Raises InvalidMediaError."""
    channels, rate_hz, seconds = limits.max_audio_channels, limits.max_audio_rate_hz, limits.max_audio_seconds
    problem = f"the audio has {header.channels} channels, at most {channels} (media.maxAudioChannels); send fewer"
    _bound(header.channels, channels, "channels", field, problem)
    if header.rate_hz and not MIN_RATE_HZ <= header.rate_hz <= rate_hz:
        raise InvalidMediaError(
            f"the audio has {header.rate_hz} samples a second, {MIN_RATE_HZ} to {rate_hz} (media.maxAudioRateHz) are "
            "accepted; resample it",
            field=field,
            limit=f"{rate_hz} Hz",
        )
    problem = f"the audio is longer than {seconds} s (media.maxAudioSeconds); send it in parts"
    _bound(header.seconds, seconds, "s", field, problem)


def check_video(header: VideoHeader, field: str, limits: MediaLimits) -> None:
    """Check a video against its limits. Raises InvalidMediaError."""
    pixels, seconds, frames = limits.max_video_pixels, limits.max_video_seconds, limits.max_video_frames
    problem = f"a frame of the video has {header.pixels} pixels, at most {pixels} are decoded (media.maxVideoPixels)"
    _bound(header.pixels, pixels, "pixels", field, f"{problem}; scale it down")
    problem = f"the video is longer than {seconds} s (media.maxVideoSeconds); send a part of it"
    _bound(header.seconds, seconds, "s", field, problem)
    problem = f"the video has {header.frames} frames, at most {frames} are decoded (media.maxVideoFrames)"
    _bound(header.frames, frames, "frames", field, f"{problem}; lower its frame rate")
    if header.frames == 1:
        raise InvalidMediaError("the video has one frame; send it as an image", field=field, limit="2 frames")


def plan_medium(message: prompt_pb2.Media, field: str, kind: MediaKind, rules: MediaRules) -> MediaSlot:
    """Returns one medium of a chat with its cost. Raises InvalidRequestError (or a subclass), RequestTooLargeError."""
    if kind == "video" and not (rules.reads_video and isinstance(rules.takes, TakesVideo)):
        raise InvalidRequestError("this model reads no video; send its frames as images", field=field)
    source = message.WhichOneof("source")
    if source == "data":
        if len(message.data) > MAX_INLINE_MEDIA_BYTES:
            raise RequestTooLargeError(
                f"inline media has {len(message.data)} bytes, at most {MAX_INLINE_MEDIA_BYTES}; send it as MediaChunks",
                field=field,
                limit=f"{MAX_INLINE_MEDIA_BYTES} bytes",
            )
        slot = MediaSlot(field, kind, message.media_type, message.data, None, len(message.data))
    elif source == "chunked":
        chunked = message.chunked
        slot = MediaSlot(
            field, kind, message.media_type, b"", chunked.media_id, chunked.total_bytes, chunked.decoded_bytes
        )
    else:
        raise InvalidMediaError("a medium needs data or chunked", field=field)
    if slot.size == 0:
        raise InvalidMediaError("a medium holds no bytes", field=field)
    if slot.size > rules.limits.max_media_bytes:
        raise RequestTooLargeError(
            f"a medium has {slot.size} bytes, at most {rules.limits.max_media_bytes} (limits.maxMediaBytes)",
            field=field,
            limit=f"{rules.limits.max_media_bytes} bytes",
        )
    if slot.media_id is None:
        return judge_medium(slot, rules)
    with in_field(field):
        unseen, audio_bytes = _bound_unseen(slot, rules)
    return replace(slot, held_bytes=ENCODED_COPIES * slot.size + unseen + audio_bytes, audio_input_bytes=audio_bytes)


def check_media(media: Sequence[MediaSlot], rules: MediaRules) -> None:
    """Check all media of a request together against the limits.

    Raises InvalidRequestError, RequestTooLargeError, PromptTooLongError.
    """
    ids = [slot.media_id for slot in media if slot.media_id is not None]
    if len(set(ids)) != len(ids):
        raise InvalidRequestError("two media have the same media_id", field="start.chat")
    decoded = sum(_decoded_bytes(slot) for slot in media)
    if decoded > rules.media.max_decoded_bytes:
        raise RequestTooLargeError(
            f"the request's media have {decoded} bytes once decoded (3 a pixel that is seen, 4 a sample), at most "
            f"{rules.media.max_decoded_bytes} (media.maxDecodedBytes); send fewer or smaller ones",
            field=only_field(media),
            limit=f"{rules.media.max_decoded_bytes} bytes",
        )
    tokens = sum(slot.tokens for slot in media)
    if tokens >= rules.max_model_len:
        raise PromptTooLongError(
            f"the request's media take {tokens} tokens; the engine's longest sequence, output included, is "
            f"{rules.max_model_len}; send fewer or smaller ones",
            field="start.chat",
            limit=f"{rules.max_model_len} tokens",
            actual=f"{tokens} tokens",
        )


def only_field(media: Sequence[MediaSlot]) -> str:
    """Returns the field of what is wrong with the media together: the medium's own if there is only one."""
    return media[0].field if len(media) == 1 else "start.chat.messages"


def receive_media(
    media: Sequence[MediaSlot], received: Mapping[int, bytes | bytearray], rules: MediaRules
) -> tuple[MediaSlot, ...]:
    """Returns the media with the bytes that arrived in chunks. Their headers are checked against the limits and against
    what was reserved.

    Raises InvalidRequestError (or a subclass), RequestTooLargeError.
    """
    slots = []
    for slot in media:
        if slot.media_id is not None:
            slot = _receive_medium(slot, received[slot.media_id], rules)
        slots.append(slot)
    check_media(slots, rules)
    return tuple(slots)


def judge_medium(slot: MediaSlot, rules: MediaRules) -> MediaSlot:
    """Returns the slot with its header and cost, read from its bytes.

    Raises InvalidRequestError or a subclass, of the medium's field: the model's own checks name none.
    """
    with in_field(slot.field):
        return _judge(slot, rules)


def _judge(slot: MediaSlot, rules: MediaRules) -> MediaSlot:
    try:
        header = read_header(slot.data, slot.kind)
    except MediaHeaderError as error:
        raise InvalidMediaError(str(error), field=slot.field) from None
    # The bytes decide. But a wrong kind is a mistake of the caller, except that recorders call MP4 and WebM video.
    said = slot.media_type.partition("/")[0]
    if said in ("image", "audio", "video") and said != slot.kind and (slot.kind, said) != ("audio", "video"):
        raise InvalidMediaError(
            f"media_type names {said}, but the part is {slot.kind}", field=f"{slot.field}.media_type"
        )
    if isinstance(header, VideoHeader):
        return _judge_video(slot, header, rules)
    if isinstance(header, ImageHeader):
        check_image(header, slot.field, rules.media)
        cost = rules.takes.image_cost(header.width, header.height)
        copies, audio_bytes, samples = _image_copies(header.pixels), 0, 0
    else:
        check_audio(header, slot.field, rules.media)
        samples = audio_samples(header, slot.size, rules)
        cost, copies = rules.takes.audio_cost(samples), _audio_copies(samples)
        audio_bytes = cost.engine_input_bytes
        if not header.seconds:
            # Audio that does not state its length may be short.
            cost = replace(cost, tokens=0)
    held = ENCODED_COPIES * slot.size + copies + cost.engine_input_bytes
    return replace(
        slot, header=header, samples=samples, tokens=cost.tokens, held_bytes=held, audio_input_bytes=audio_bytes
    )


def audio_samples(header: AudioHeader, size: int, rules: MediaRules) -> int:
    """Returns how many samples audio of `size` bytes has at most, at the model's rate."""
    rate = rules.takes.audio_rate_hz
    if header.frames and header.media_type in ("audio/wav", "audio/flac"):
        return math.ceil(header.frames * rate / header.rate_hz)
    if header.frames:
        return min(rules.max_audio_samples, math.ceil((header.seconds + _STATED_MARGIN_S) * rate))
    if header.media_type == "audio/mpeg":
        return min(rules.max_audio_samples, math.ceil((size / _MP3_BYTES_PER_SECOND + _STATED_MARGIN_S) * rate))
    return rules.max_audio_samples


def _judge_video(slot: MediaSlot, header: VideoHeader, rules: MediaRules) -> MediaSlot:
    check_video(header, slot.field, rules.media)
    if not isinstance(rules.takes, TakesVideo):
        raise InvalidRequestError("this model reads no video; send its frames as images", field=slot.field)
    count = header.kept_frames
    shown = (header.height, header.width) if header.quarter_turns % 2 else (header.width, header.height)
    width, height = rules.takes.frame_size(*shown, count)
    plan = FramePlan(width, height, count, rules.hear_videos and header.has_audio)
    seen = rules.takes.video_cost(width, height, count)
    heard = _cost_of_track(header, rules) if plan.is_heard else MediaCost(0, 0)
    held = (
        ENCODED_COPIES * slot.size
        + plan.bytes * FRAME_COPIES
        + header.pixels * VIDEO_WORK_BYTES_PER_PIXEL
        + (_audio_copies(header.audio_samples) if plan.is_heard else 0)
        + seen.engine_input_bytes
        + heard.engine_input_bytes
    )
    # A video may be shorter than its header says, so only the tokens of two frames are certain.
    least = rules.takes.video_cost(width, height, 2).tokens
    audio_bytes = heard.engine_input_bytes
    return replace(slot, header=header, frames=plan, tokens=least, held_bytes=held, audio_input_bytes=audio_bytes)


def _cost_of_track(header: VideoHeader, rules: MediaRules) -> MediaCost:
    return rules.takes.audio_cost(min(header.audio_samples, rules.max_audio_samples))


def _receive_medium(slot: MediaSlot, data: bytes | bytearray, rules: MediaRules) -> MediaSlot:
    judged = judge_medium(replace(slot, data=data), rules)
    decoded = _decoded_bytes(judged)
    if (slot.declared_bytes and decoded > slot.declared_bytes) or judged.held_bytes > slot.held_bytes:
        raise InvalidMediaError(
            f"according to its header, the medium has {decoded} bytes once decoded; "
            f"Start announced {slot.declared_bytes}",
            field=f"{slot.field}.chunked.decoded_bytes",
            limit=f"{slot.declared_bytes} bytes",
        )
    return judged


def _decoded_bytes(slot: MediaSlot) -> int:
    """Returns the decoded size from the header, or the declared size while the medium has not arrived."""
    if slot.header is None:
        return slot.declared_bytes
    return slot.header.decoded_bytes or slot.samples * BYTES_PER_SAMPLE


def _bound_unseen(slot: MediaSlot, rules: MediaRules) -> tuple[int, int]:
    """Returns two upper bounds, in bytes, for a medium whose header is not known yet.

    The second bound is for the engine's input that is made from the medium's audio. The first bound is for all other
    memory, except the encoded bytes.
    """
    if slot.kind == "video":
        return _bound_unseen_video(slot, rules)
    if slot.kind == "image":
        pixels = rules.media.max_image_pixels
        if slot.declared_bytes:
            pixels = min(pixels, -(-slot.declared_bytes // BYTES_PER_PIXEL))
        return _image_copies(pixels) + _worst_image(pixels, rules.takes), 0
    samples = rules.max_audio_samples
    if slot.declared_bytes:
        slowest = slot.declared_bytes // BYTES_PER_SAMPLE
        slowest_s = slowest / MIN_RATE_HZ + _STATED_MARGIN_S
        samples = min(samples, math.ceil(slowest_s * rules.takes.audio_rate_hz))
    return _audio_copies(samples), rules.takes.audio_cost(samples).engine_input_bytes


def _bound_unseen_video(slot: MediaSlot, rules: MediaRules) -> tuple[int, int]:
    frames = min(MAX_FRAMES, max(MIN_FRAMES, FRAMES_PER_SECOND * rules.media.max_video_seconds))
    seen = frames * max(FRAME_PIXELS)
    samples = (rules.media.max_video_seconds + 1) * AUDIO_RATE_HZ
    decoded = min(3 * seen + 4 * samples, rules.media.max_decoded_bytes)
    if slot.declared_bytes:
        decoded = min(decoded, slot.declared_bytes)
    # Sides are rounded up to patches, which makes a very elongated frame up to 1.5 times as large.
    seen = decoded // 2 + max(FRAME_PIXELS)
    if not isinstance(rules.takes, TakesVideo):
        return 0, 0
    cost = rules.takes.video_cost(seen // MIN_FRAMES, 1, MIN_FRAMES).engine_input_bytes
    audio_bytes = rules.takes.audio_cost(min(samples, rules.max_audio_samples)).engine_input_bytes
    work = rules.media.max_video_pixels * VIDEO_WORK_BYTES_PER_PIXEL
    return 3 * seen * FRAME_COPIES + work + _audio_copies(min(samples, decoded // 4 + 1)) + cost, audio_bytes


def _worst_image(pixels: int, takes: TakesMedia) -> int:
    """Returns the maximum bytes of the engine's input for an image of `pixels` pixels in any shape."""
    wide = math.isqrt(takes.max_aspect_ratio * pixels) + _PATCH_MARGIN
    square = math.isqrt(pixels) + _PATCH_MARGIN
    forms = ((square, square), (wide, pixels // wide + _PATCH_MARGIN))
    return max(takes.image_cost(*form).engine_input_bytes for form in forms)


def _image_copies(pixels: int) -> int:
    return pixels * IMAGE_COPIES_BYTES


def _audio_copies(samples: int) -> int:
    return samples * BYTES_PER_SAMPLE * AUDIO_COPIES
