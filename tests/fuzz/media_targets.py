"""What reads the bytes of a stranger's image or sound: headers, decoders and the resampler, each run in this process.

An input is a small medium of its format with bytes written over it; so that what follows a checksum or a magic number
is reached too. Headers decide first, as in a stage, by caps that are small enough for a million runs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from omni_proto.media_header import ImageHeader
from omni_proto.stage_config import Limits, MediaLimits
from omni_stage.errors import InvalidRequestError, RequestTooLargeError
from omni_stage.media.decode import UndecodableError, decode_audio, decode_image
from omni_stage.media.resample import resample, resample_blocks
from omni_stage.service.media.planning import MediaRules, MediaSlot, audio_samples, check_media, judge_medium
from support.hostile_media import CORPUS, TAKEN
from support.scripted_stages import ScriptedComponent

RULES = MediaRules(
    Limits(),
    MediaLimits(max_image_pixels=1 << 16, max_image_scans=4, max_audio_seconds=2, max_decoded_bytes=1 << 22),
    ScriptedComponent(),
    4096,
)
MAX_SEED_BYTES = 20_000


@cache
def seeds(*, is_image: bool) -> tuple[bytes, ...]:
    made = (medium.make() for medium in CORPUS if medium.fate == TAKEN and medium.is_image is is_image)
    return tuple(data for data in made if len(data) <= MAX_SEED_BYTES)


def mutate(data: bytes, *, is_image: bool) -> bytes:
    """A seed, cut off and written over as the input says: 1 byte picks, 2 cut, then 3 each: where and what."""
    known = seeds(is_image=is_image)
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


def decode(data: bytes, *, is_image: bool) -> None:
    slot = MediaSlot("f", is_image, "", data, None, len(data))
    try:
        slot = judge_medium(slot, RULES)
        check_media([slot], RULES)
    except (InvalidRequestError, RequestTooLargeError):
        return
    header = slot.header
    try:
        if isinstance(header, ImageHeader):
            out = np.zeros((header.height, header.width, 3), np.uint8)
            decode_image(data, header.media_type.removeprefix("image/").upper(), out)
        elif header is not None:
            room = np.zeros(audio_samples(header, RULES), np.float32)
            count = decode_audio(data, header.frames, header.rate_hz, header.channels, 16_000, room)
            if not 0 < count <= room.size or not np.isfinite(room).all():
                raise AssertionError("a sound that has no room, or is none")
    except UndecodableError:
        return
    except (OSError, SyntaxError, ValueError, RuntimeError, EOFError, OverflowError, TypeError, KeyError, IndexError):
        # What Pillow and soundfile raise on damage; a worker answers all of it alike.
        return


def image(data: bytes) -> None:
    """A PNG or JPEG."""
    decode(mutate(data, is_image=True), is_image=True)


def sound(data: bytes) -> None:
    """A WAV or FLAC."""
    decode(mutate(data, is_image=False), is_image=False)


def raw_media(data: bytes) -> None:
    """Bytes of no form."""
    for magic in (b"", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"RIFF\0\0\0\0WAVE", b"fLaC"):
        for is_image in (True, False):
            decode(magic + data, is_image=is_image)


def resampling(data: bytes) -> None:
    """Any rates that a header may tell, in blocks of any sizes."""
    if len(data) < 8:
        return
    rate = 4000 + int.from_bytes(data[:3], "big") % 188_001
    to = (16_000, 24_000, 8_000)[data[3] % 3]
    samples = np.frombuffer(data[4:], np.int8).astype(np.float32) / 128
    cuts = sorted(int(cut) % samples.size for cut in data[4 : 4 + data[3] % 5])
    whole = resample(samples, rate, to)
    parts = resample_blocks(np.split(samples, cuts), rate, to)
    if whole.size != -(-samples.size * to // rate) and rate != to:
        raise AssertionError("a sound of another length")
    if not np.allclose(whole, parts, atol=1e-5) or not np.isfinite(whole).all() or np.abs(whole).max() > 4:
        raise AssertionError("a sound that depends on its blocks, or is louder than it came")


TARGETS: tuple[Callable[[bytes], None], ...] = (image, sound, raw_media, resampling)
