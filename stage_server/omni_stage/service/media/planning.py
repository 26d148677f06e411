"""What a request's images and audio will cost, by their headers: checked and reserved before decoding. Pure.

Media inside of Start are judged before admission. Of media that follow in chunks Start states the decoded size, or the
most that the stage takes is reserved; once they are there, their headers are compared with that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from omni_proto.media_header import (
    BYTES_PER_PIXEL,
    BYTES_PER_SAMPLE,
    AudioHeader,
    ImageHeader,
    MediaHeaderError,
    read_header,
)
from omni_proto.stage.v1 import prompt_pb2
from omni_proto.stage_config import Limits, MediaLimits
from omni_stage.errors import InvalidMediaError, InvalidRequestError, PromptTooLongError, RequestTooLargeError
from omni_stage.media.decode import WORK_BYTES_PER_PIXEL
from omni_stage.models.component import TakesMedia

MAX_INLINE_MEDIA_BYTES: Final = 4 << 20
MIN_RATE_HZ: Final = 4000
IMAGE_COPIES_BYTES: Final = WORK_BYTES_PER_PIXEL + 7
"""A pixel, until the engine's input is made: the decoder's, shared memory's 3, and the stage server's 4."""
AUDIO_COPIES: Final = 4
"""Of audio at the model's rate: in pieces and as one in the process that decodes, shared memory, the stage server."""
ENCODED_COPIES: Final = 2
"""As it came, and in the shared memory that the decoder reads."""

_PATCH_MARGIN: Final = 64
"""More pixels than a side is rounded up by."""


_IMAGE_TYPES: Final = ("image/png", "image/jpeg")
_AUDIO_TYPES: Final = ("audio/wav", "audio/flac")
_ALIASES: Final = {
    "image/jpg": "image/jpeg",
    "audio/x-wav": "audio/wav",
    "audio/wave": "audio/wav",
    "audio/x-flac": "audio/flac",
}


@dataclass(frozen=True, slots=True)
class MediaSlot:
    """One image or piece of audio of a prompt: where its bytes are and, once they are known, what their header says."""

    field: str
    is_image: bool
    media_type: str
    data: bytes | bytearray
    media_id: int | None
    size: int
    """As encoded."""
    declared_bytes: int = 0
    """Decoded size stated in Start; 0 if it states none, and for media that Start holds."""
    header: ImageHeader | AudioHeader | None = None
    tokens: int = 0
    held_bytes: int = 0
    """What the stage holds for it, at most, until the request ends."""


@dataclass(frozen=True, slots=True)
class MediaRules:
    """What media are compared with."""

    limits: Limits
    media: MediaLimits
    takes: TakesMedia
    max_model_len: int

    @property
    def max_audio_samples(self) -> int:
        """At the model's rate."""
        return self.media.max_audio_seconds * self.takes.audio_rate_hz


def plan_medium(message: prompt_pb2.Media, field: str, is_image: bool, rules: MediaRules) -> MediaSlot:
    """One medium of a chat, with what it will cost. Raises InvalidMediaError, RequestTooLargeError."""
    source = message.WhichOneof("source")
    if source == "data":
        if len(message.data) > MAX_INLINE_MEDIA_BYTES:
            raise RequestTooLargeError(
                f"inline media has {len(message.data)} bytes, at most {MAX_INLINE_MEDIA_BYTES}; send it as MediaChunks",
                field=field,
                limit=f"{MAX_INLINE_MEDIA_BYTES} bytes",
            )
        slot = MediaSlot(field, is_image, message.media_type, message.data, None, len(message.data))
    elif source == "chunked":
        chunked = message.chunked
        slot = MediaSlot(
            field, is_image, message.media_type, b"", chunked.media_id, chunked.total_bytes, chunked.decoded_bytes
        )
    else:
        raise InvalidMediaError("a medium has data or chunked", field=field)
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
    return replace(slot, held_bytes=ENCODED_COPIES * slot.size + _bound_unseen(slot, rules))


def check_media(media: Sequence[MediaSlot], rules: MediaRules) -> None:
    """Hold the media of a request together against its bounds. Raises OmniStageError."""
    ids = [slot.media_id for slot in media if slot.media_id is not None]
    if len(set(ids)) != len(ids):
        raise InvalidRequestError("two media have the same media_id", field="start.chat")
    decoded = sum(_decoded_bytes(slot) for slot in media)
    if decoded > rules.media.max_decoded_bytes:
        raise RequestTooLargeError(
            f"the request's media have {decoded} bytes once decoded (3 a pixel, 4 a sample), at most "
            f"{rules.media.max_decoded_bytes} (media.maxDecodedBytes); send fewer or smaller ones",
            field="start.chat",
            limit=f"{rules.media.max_decoded_bytes} bytes",
        )
    tokens = sum(slot.tokens for slot in media)
    if tokens >= rules.max_model_len:
        raise PromptTooLongError(
            f"the request's media take {tokens} tokens; the engine's longest sequence, output included, is "
            f"{rules.max_model_len}; send fewer or smaller ones",
            field="start.chat",
            limit=f"{rules.max_model_len} tokens",
        )


def receive_media(
    media: Sequence[MediaSlot], received: Mapping[int, bytes | bytearray], rules: MediaRules
) -> tuple[MediaSlot, ...]:
    """The media with the bytes that came in chunks, compared with their headers. Raises InvalidMediaError and its kin.

    No medium holds more than was reserved for it.
    """
    slots = []
    for slot in media:
        if slot.media_id is not None:
            slot = _receive_medium(slot, received[slot.media_id], rules)
        slots.append(slot)
    check_media(slots, rules)
    return tuple(slots)


def judge_medium(slot: MediaSlot, rules: MediaRules) -> MediaSlot:
    """The slot with its header, once its bytes are there. Raises InvalidMediaError."""
    try:
        header = read_header(slot.data)
    except MediaHeaderError as error:
        raise InvalidMediaError(str(error), field=slot.field) from None
    allowed = _IMAGE_TYPES if slot.is_image else _AUDIO_TYPES
    if header.media_type not in allowed:
        raise InvalidMediaError(
            f"the bytes are none of {', '.join(allowed)}", field=slot.field, limit=", ".join(allowed)
        )
    said = _ALIASES.get(slot.media_type, slot.media_type)
    if said and said != header.media_type:
        raise InvalidMediaError(
            f"media_type does not agree with the bytes, which are {header.media_type}", field=f"{slot.field}.media_type"
        )
    if isinstance(header, ImageHeader):
        _check_image(header, slot.field, rules.media)
        cost = rules.takes.image_cost(header.width, header.height)
        copies = _image_copies(header.pixels)
    else:
        _check_audio(header, slot.field, rules.media)
        samples = audio_samples(header, rules)
        cost, copies = rules.takes.audio_cost(samples), _audio_copies(samples)
    held = ENCODED_COPIES * slot.size + copies + cost.engine_input_bytes
    return replace(slot, header=header, tokens=cost.tokens, held_bytes=held)


def audio_samples(header: AudioHeader, rules: MediaRules) -> int:
    """Returns how many samples audio has at the model's rate, by its header."""
    return math.ceil(header.frames * rules.takes.audio_rate_hz / header.rate_hz)


def _receive_medium(slot: MediaSlot, data: bytes | bytearray, rules: MediaRules) -> MediaSlot:
    judged = judge_medium(replace(slot, data=data), rules)
    decoded = _decoded_bytes(judged)
    if (slot.declared_bytes and decoded > slot.declared_bytes) or judged.held_bytes > slot.held_bytes:
        raise InvalidMediaError(
            f"by its header the medium has {decoded} bytes once decoded; Start announced {slot.declared_bytes}",
            field=f"{slot.field}.chunked.decoded_bytes",
            limit=f"{slot.declared_bytes} bytes",
        )
    return judged


def _check_image(header: ImageHeader, field: str, limits: MediaLimits) -> None:
    if header.pixels > limits.max_image_pixels:
        raise InvalidMediaError(
            f"the image has {header.pixels} pixels, at most {limits.max_image_pixels} are decoded "
            "(media.maxImagePixels); send a smaller one",
            field=field,
            limit=f"{limits.max_image_pixels} pixels",
        )
    if header.frames > 1:
        raise InvalidMediaError("the image is animated; send one frame of it", field=field, limit="1 frame")
    if header.scans > limits.max_image_scans:
        raise InvalidMediaError(
            f"the image has more than {limits.max_image_scans} scans (media.maxImageScans); save it as baseline JPEG",
            field=field,
            limit=f"{limits.max_image_scans} scans",
        )


def _check_audio(header: AudioHeader, field: str, limits: MediaLimits) -> None:
    if header.channels > limits.max_audio_channels:
        raise InvalidMediaError(
            f"the audio has {header.channels} channels, at most {limits.max_audio_channels} (media.maxAudioChannels); "
            "send fewer",
            field=field,
            limit=f"{limits.max_audio_channels} channels",
        )
    if not MIN_RATE_HZ <= header.rate_hz <= limits.max_audio_rate_hz:
        raise InvalidMediaError(
            f"the audio has {header.rate_hz} samples a second, {MIN_RATE_HZ} to {limits.max_audio_rate_hz} "
            "(media.maxAudioRateHz) are taken; resample it",
            field=field,
            limit=f"{limits.max_audio_rate_hz} Hz",
        )
    if header.frames == 0:
        raise InvalidMediaError("the audio is empty", field=field)
    if header.frames > limits.max_audio_seconds * header.rate_hz:
        raise InvalidMediaError(
            f"the audio is longer than {limits.max_audio_seconds} s (media.maxAudioSeconds); send it in parts",
            field=field,
            limit=f"{limits.max_audio_seconds} s",
        )


def _decoded_bytes(slot: MediaSlot) -> int:
    """As the header says; of a medium that is still to come, as declared."""
    return slot.declared_bytes if slot.header is None else slot.header.decoded_bytes


def _bound_unseen(slot: MediaSlot, rules: MediaRules) -> int:
    """Most bytes that a medium whose header is still to come may hold once it is here."""
    if slot.is_image:
        pixels = rules.media.max_image_pixels
        if slot.declared_bytes:
            pixels = min(pixels, -(-slot.declared_bytes // BYTES_PER_PIXEL))
        return _image_copies(pixels) + _worst_image(pixels, rules.takes)
    samples = rules.max_audio_samples
    if slot.declared_bytes:
        slowest = slot.declared_bytes // BYTES_PER_SAMPLE
        samples = min(samples, math.ceil(slowest * rules.takes.audio_rate_hz / MIN_RATE_HZ))
    return _audio_copies(samples) + rules.takes.audio_cost(samples).engine_input_bytes


def _worst_image(pixels: int, takes: TakesMedia) -> int:
    """Bytes of the engine's input of an image of so many pixels, whatever its form: sides are rounded up to patches."""
    wide = math.isqrt(takes.max_aspect_ratio * pixels) + _PATCH_MARGIN
    square = math.isqrt(pixels) + _PATCH_MARGIN
    forms = ((square, square), (wide, pixels // wide + _PATCH_MARGIN))
    return max(takes.image_cost(*form).engine_input_bytes for form in forms)


def _image_copies(pixels: int) -> int:
    return pixels * IMAGE_COPIES_BYTES


def _audio_copies(samples: int) -> int:
    return samples * BYTES_PER_SAMPLE * AUDIO_COPIES
