"""Keeps decoded media, so that the earlier turns of a conversation are not decoded again. Used from one event loop."""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from dataclasses import replace

from omni_stage.models.component import AudioPart, ImagePart, MediaPart, VideoPart
from omni_stage.service.media.decode_job import describe_job
from omni_stage.service.media.slots import MediaRules, MediaSlot


def content_key(slot: MediaSlot, rules: MediaRules, salt: str) -> bytes:
    """Returns a name of what decoding a medium gives: equal for equal bytes, equal instructions to the decoder, and an
    equal cache salt. It takes a millisecond per MiB, half of that on processors with instructions for SHA-256."""
    job = json.dumps([salt, slot.kind, describe_job(slot, rules)[2]], sort_keys=True).encode()
    digest = hashlib.sha256(hashlib.sha256(job).digest())
    digest.update(slot.data)
    return digest.digest()


def named(part: MediaPart, key: str) -> MediaPart:
    """Returns a decoded medium with its key, which a video's audio shares."""
    if isinstance(part, VideoPart) and part.audio is not None:
        return replace(part, key=key, audio=replace(part.audio, key=key))
    return replace(part, key=key)


def decoded_bytes(part: MediaPart) -> int:
    """Returns the memory of a decoded medium."""
    if isinstance(part, ImagePart):
        return 3 * part.image.width * part.image.height
    if isinstance(part, AudioPart):
        return int(part.samples.nbytes)
    return int(part.frames.nbytes) + (0 if part.audio is None else int(part.audio.samples.nbytes))


class DecodedMedia:
    """Decoded media by content_key, up to `limit` bytes. The one that was used least recently leaves first."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._parts: OrderedDict[bytes, MediaPart] = OrderedDict()
        self._bytes = 0

    def get(self, key: bytes) -> MediaPart | None:
        """Returns a decoded medium, or None if it is not kept."""
        part = self._parts.get(key)
        if part is not None:
            self._parts.move_to_end(key)
        return part

    def put(self, key: bytes, part: MediaPart) -> None:
        """Keep a decoded medium, unless it alone is larger than the limit. Nobody may write to it from now on."""
        size = decoded_bytes(part)
        if key in self._parts or size > self.limit:
            return
        self._parts[key] = part
        self._bytes += size
        while self._bytes > self.limit:
            self._bytes -= decoded_bytes(self._parts.popitem(last=False)[1])
