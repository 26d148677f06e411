"""Decoding of images and sounds, bounded before anything is decoded: a small file must not become gigabytes.

Runs in a thread. The content decides what a medium is; the caller's media_type must agree with it.
"""

from __future__ import annotations

import io
import warnings
from typing import Final

import numpy as np
import soundfile
from PIL import Image, UnidentifiedImageError

from omni_stage.errors import InvalidMediaError
from omni_stage.models.component import AudioPart, ImagePart

MAX_IMAGE_PIXELS: Final = 32 << 20
"""About 96 MiB as RGB."""
MAX_AUDIO_SAMPLES: Final = 32 << 20
"""All channels together; 128 MiB as float32, 11 minutes of 48 kHz mono."""
MAX_AUDIO_CHANNELS: Final = 8
MIN_RATE_HZ: Final = 1000
MAX_RATE_HZ: Final = 384_000

_IMAGE_TYPES: Final = ("image/png", "image/jpeg")
_AUDIO_TYPES: Final = ("audio/wav", "audio/flac")
_ALIASES: Final = {
    "image/jpg": "image/jpeg",
    "audio/x-wav": "audio/wav",
    "audio/wave": "audio/wav",
    "audio/x-flac": "audio/flac",
}


def sniff(data: bytes) -> str | None:
    """The media type that the first bytes tell, or None."""
    if data[:8] == b"\x89PNG\r\n\x1a\n":
        return "image/png"
    if data[:3] == b"\xff\xd8\xff":
        return "image/jpeg"
    if data[:4] == b"RIFF" and data[8:12] == b"WAVE":
        return "audio/wav"
    if data[:4] == b"fLaC":
        return "audio/flac"
    return None


def _check_type(data: bytes, media_type: str, allowed: tuple[str, ...], field: str) -> str:
    found = sniff(data)
    if found not in allowed:
        raise InvalidMediaError(f"the bytes are none of {', '.join(allowed)}", field=field, limit=", ".join(allowed))
    said = _ALIASES.get(media_type, media_type)
    if said and said != found:
        raise InvalidMediaError(
            f"media_type does not agree with the bytes, which are {found}", field=f"{field}.media_type"
        )
    return found


def decode_image(data: bytes, media_type: str, field: str) -> ImagePart:
    """Decode PNG or JPEG to RGB. Raises InvalidMediaError naming field."""
    found = _check_type(data, media_type, _IMAGE_TYPES, field)
    try:
        with warnings.catch_warnings():
            # Pillow warns of large images; the limit here is ours and checked before a pixel is decoded.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(data), formats=[found.removeprefix("image/").upper()]) as image:
                pixels = image.width * image.height
                if pixels > MAX_IMAGE_PIXELS:
                    raise InvalidMediaError(
                        f"the image has {pixels} pixels, at most {MAX_IMAGE_PIXELS} are decoded; send a smaller one",
                        field=field,
                        limit=f"{MAX_IMAGE_PIXELS} pixels",
                    )
                return ImagePart(image.convert("RGB"))
    except (UnidentifiedImageError, Image.DecompressionBombError, OSError, SyntaxError, ValueError, EOFError) as error:
        raise InvalidMediaError(f"the image cannot be decoded as {found}", field=field) from error


def decode_audio(data: bytes, media_type: str, field: str) -> AudioPart:
    """Decode WAV or FLAC to float32 mono in [-1, 1]; channels are averaged. Raises InvalidMediaError naming field."""
    found = _check_type(data, media_type, _AUDIO_TYPES, field)
    try:
        with soundfile.SoundFile(io.BytesIO(data)) as sound:
            _check_sound(sound, field)
            # Headers may lie about frames, so the read is bounded as well.
            bound = MAX_AUDIO_SAMPLES // sound.channels
            frames: np.ndarray = sound.read(frames=bound + 1, dtype="float32", always_2d=True)
            rate = int(sound.samplerate)
    except (soundfile.LibsndfileError, RuntimeError, ValueError, OSError) as error:
        raise InvalidMediaError(f"the sound cannot be decoded as {found}", field=field) from error
    if len(frames) > bound:
        raise _too_long(field)
    if len(frames) == 0:
        raise InvalidMediaError("the sound is empty", field=field)
    mono = np.ascontiguousarray(frames.mean(axis=1, dtype=np.float32))
    if not np.isfinite(mono).all():
        raise InvalidMediaError("the sound holds NaN or infinity", field=field)
    return AudioPart(np.clip(mono, -1.0, 1.0), rate)


def _check_sound(sound: soundfile.SoundFile, field: str) -> None:
    if not 1 <= sound.channels <= MAX_AUDIO_CHANNELS:
        raise InvalidMediaError(
            f"the sound has {sound.channels} channels, at most {MAX_AUDIO_CHANNELS}",
            field=field,
            limit=MAX_AUDIO_CHANNELS,
        )
    if not MIN_RATE_HZ <= sound.samplerate <= MAX_RATE_HZ:
        raise InvalidMediaError(
            f"the sound has {sound.samplerate} samples a second, {MIN_RATE_HZ} to {MAX_RATE_HZ} are taken",
            field=field,
            limit=f"{MAX_RATE_HZ} Hz",
        )
    if sound.frames * sound.channels > MAX_AUDIO_SAMPLES:
        raise _too_long(field)


def _too_long(field: str) -> InvalidMediaError:
    return InvalidMediaError(
        f"the sound has more than {MAX_AUDIO_SAMPLES} samples; send a shorter one",
        field=field,
        limit=f"{MAX_AUDIO_SAMPLES} samples",
    )
