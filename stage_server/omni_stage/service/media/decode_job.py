"""A request's media as a job for a worker: the layout in shared memory, the worker's instructions, and its answer."""

from __future__ import annotations

import json
import mmap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from PIL import Image

from omni_proto.media_headers.audio import BYTES_PER_SAMPLE, AudioHeader
from omni_proto.media_headers.image import ImageHeader
from omni_proto.media_headers.video import VideoHeader
from omni_stage.decoding.decode import WORK_BYTES_PER_PIXEL
from omni_stage.errors import InvalidMediaError
from omni_stage.models.component import AudioPart, ImagePart, MediaPart, VideoPart
from omni_stage.service.media.planning import VIDEO_WORK_BYTES_PER_PIXEL
from omni_stage.service.media.slots import MediaRules, MediaSlot

_WORK_SLACK_BYTES: Final = 64 << 20
"""Memory that a worker needs in addition to its media, for tables of the decoders, blocks of samples and the
resampler."""
_MAX_ERROR_CHARS: Final = 200


@dataclass(frozen=True, slots=True)
class DecodeJob:
    """A request's media and their layout in shared memory: encoded media first, then space for the decoded ones."""

    slots: Sequence[MediaSlot]
    media: list[dict[str, Any]]
    shared_bytes: int
    message: bytes

    @classmethod
    def plan(cls, slots: Sequence[MediaSlot], rules: MediaRules, seconds: float) -> DecodeJob:
        """Returns the job for these media, laid out by their headers."""
        media: list[dict[str, Any]] = []
        position = work = 0
        for slot in slots:
            media.append({"offset": position, "size": slot.size})
            position += slot.size
        for slot, medium in zip(slots, media, strict=True):
            position += -position % mmap.PAGESIZE
            medium["out"] = position
            needed, room, described = describe_job(slot, rules)
            medium |= described
            if "seconds" in described:
                # The audio follows the frames, which take a whole number of pages.
                medium["audio_out"] = position + room - described["max_samples"] * BYTES_PER_SAMPLE
            position += room
            work = max(work, needed + slot.size)
        job = {
            "media": media,
            "shared_bytes": position,
            "work_bytes": work + _WORK_SLACK_BYTES,
            "seconds": seconds,
        }
        return cls(slots, media, position, json.dumps(job).encode())

    def fill(self, shared: mmap.mmap) -> None:
        """Copy the encoded bytes into shared memory."""
        for slot, medium in zip(self.slots, self.media, strict=True):
            shared[medium["offset"] : medium["offset"] + slot.size] = bytes(slot.data)

    def read(self, answer: dict[str, Any]) -> list[tuple[int, int, float]]:
        """Returns three numbers for each medium: width and height of an image, else the numbers of frames and of audio
        samples; and the share that is damaged.

        Raises InvalidMediaError if the answer is an error, or if its sizes do not fit the plan.
        """
        if "error" in answer:
            number = answer.get("medium")
            fields = {index: slot.field for index, slot in enumerate(self.slots)}
            raise InvalidMediaError(
                f"a medium cannot be used: {str(answer['error'])[:_MAX_ERROR_CHARS]}",
                field=fields.get(number, "") if type(number) is int else "",
            )
        sizes, damage = answer.get("sizes"), answer.get("damage")
        fits = isinstance(sizes, list) and isinstance(damage, list) and len(sizes) == len(damage) == len(self.media)
        if not fits or not all(map(_fits, sizes or (), damage or (), self.media)):
            raise InvalidMediaError("the request's media cannot be decoded")
        return [(frames, samples, share) for (frames, samples), share in zip(sizes or (), damage or (), strict=True)]

    def take(self, shared: mmap.mmap, sizes: Sequence[tuple[int, int, float]]) -> list[MediaPart]:
        """Returns copies of the decoded media, because the worker may still write to the shared memory."""
        parts: list[MediaPart] = []
        for medium, (frames, count, damage) in zip(self.media, sizes, strict=True):
            begin = medium["out"]
            if "seconds" in medium:
                seen = np.ndarray((frames, medium["height"], medium["width"], 3), np.uint8, shared, begin).copy()
                track = _take_audio(shared, medium["audio_out"], count, medium["to_hz"]) if count else None
                parts.append(VideoPart(seen, track, damage))
            elif "width" in medium:
                width, height = frames, count
                pixels = np.ndarray((height, width, 3), np.uint8, shared, begin)
                parts.append(ImagePart(Image.fromarray(pixels)))
            else:
                parts.append(replace(_take_audio(shared, begin, count, medium["to_hz"]), damage=damage))
        return parts


def damage_note(part: MediaPart) -> str:
    """Returns a sentence for the client if damaged parts of a medium were skipped, else an empty text."""
    if isinstance(part, ImagePart) or not part.damage:
        return ""
    kind = "video" if isinstance(part, VideoPart) else "audio"
    share = "less than 0.1 %" if part.damage < 0.001 else f"about {100 * part.damage:.1f} %"
    return f"the {kind} is damaged, and {share} of it was skipped"


def _fits(size: Any, damage: Any, medium: dict[str, Any]) -> bool:
    """Returns whether a worker's answer is possible for the requested medium: [frames, samples] within its bounds, or
    an image's [width, height], which the orientation in its EXIF data may swap; and a share from 0 to 1."""
    if type(damage) is not float or not 0 <= damage <= 1:
        return False
    if not isinstance(size, list) or len(size) != 2 or any(type(count) is not int for count in size):
        return False
    if "width" in medium and "seconds" not in medium:
        return size in ([medium["width"], medium["height"]], [medium["height"], medium["width"]])
    frames, samples = size
    least = 2 if "seconds" in medium else 0
    return bool(least <= frames <= max(1, medium.get("frames", 1)) and 0 <= samples <= medium.get("max_samples", 0))


def _take_audio(shared: mmap.mmap, begin: int, count: int, rate_hz: int) -> AudioPart:
    waveform = np.ndarray((count,), np.float32, shared, begin).copy()
    if not np.isfinite(waveform).all():
        raise InvalidMediaError("audio holds NaN or infinity")
    return AudioPart(waveform, rate_hz)


def _paged(size: int) -> int:
    return size + -size % mmap.PAGESIZE


def describe_job(slot: MediaSlot, rules: MediaRules) -> tuple[int, int, dict[str, Any]]:
    """Returns the working memory for a medium in bytes, the size of the result in bytes, and the worker's
    instructions."""
    header = slot.header
    if isinstance(header, ImageHeader):
        kind = header.media_type.removeprefix("image/").upper()
        described = {"kind": kind, "width": header.width, "height": header.height}
        return WORK_BYTES_PER_PIXEL * header.pixels, header.decoded_bytes, described
    heard = {
        "to_hz": rules.takes.audio_rate_hz,
        "max_rate_hz": rules.media.max_audio_rate_hz,
        "max_channels": rules.media.max_audio_channels,
    }
    if isinstance(header, AudioHeader):
        size = slot.samples * BYTES_PER_SAMPLE
        described = {"kind": header.media_type, "max_samples": slot.samples, "stated_s": header.seconds}
        return 3 * size, size, described | heard
    if isinstance(header, VideoHeader) and slot.frames is not None:
        plan = slot.frames
        samples = header.audio_samples if plan.is_heard else 0
        return (
            VIDEO_WORK_BYTES_PER_PIXEL * header.pixels + 3 * samples * BYTES_PER_SAMPLE,
            _paged(plan.bytes) + samples * BYTES_PER_SAMPLE,
            {
                "kind": header.media_type,
                "seconds": header.seconds,
                "width": plan.width,
                "height": plan.height,
                "quarter_turns": header.quarter_turns,
                "frames": plan.count,
                "max_frames": rules.media.max_video_frames,
                "max_samples": samples,
                "stated_s": header.seconds,
                **heard,
            },
        )
    raise InvalidMediaError("a medium has no header", field=slot.field)
