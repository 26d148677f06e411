"""Decodes an image to pixels, or audio to samples, into memory of the size that the header states."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from typing import Final

import numpy as np
import soundfile
from PIL import ExifTags, Image

from omni_stage.media.resample import resample_blocks

WORK_BYTES_PER_PIXEL: Final = 16
"""Maximum working bytes per pixel while an image is decoded: a progressive CMYK JPEG's coefficients (8), the decoded
picture (4), and its RGB copy (4)."""
_STRIP_PIXELS: Final = 1 << 20
_BLOCK_FRAMES: Final = 1 << 16


class UndecodableError(Exception):
    """The bytes cannot be decoded. The message is sent to the client and quotes no content."""


def decode_image(data: bytes, kind: str, out: np.ndarray) -> np.ndarray:
    """Decode a PNG or JPEG (`kind`) as RGB into the memory of `out`, uint8 [height, width, 3] as the header says.

    Returns a view of that memory, uint8 [height, width, 3] as the image is displayed. An orientation in its EXIF data
    is applied, which may exchange width and height. Transparent pixels become white, as in vLLM
    (vllm/multimodal/image.py). Raises UndecodableError or Pillow's errors.
    """
    height, width, _ = out.shape
    with warnings.catch_warnings():
        # Pillow warns of large images, but the size in this image's header was already checked against a limit.
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        with Image.open(io.BytesIO(data), formats=[kind]) as image:
            if image.size != (width, height):
                raise UndecodableError("the image is not as large as its header says")
            image.load()
            shown, encoded = _orient(out, _orientation(image))
            rows = max(1, _STRIP_PIXELS // width)
            for top in range(0, height, rows):
                bottom = min(top + rows, height)
                encoded[top:bottom] = np.asarray(_as_rgb(image.crop((0, top, width, bottom))))
    return shown


def _orientation(image: Image.Image) -> int:
    """Returns how to turn and mirror the encoded image: 1 to 8, as in TIFF and EXIF, where 1 means unchanged."""
    try:
        value = image.getexif().get(ExifTags.Base.Orientation, 1)
    except Exception:  # noqa: BLE001 - damaged EXIF data can raise anything, though the image itself may be intact
        return 1
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def _orient(out: np.ndarray, orientation: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns two views of the same memory: [height, width, 3] of the displayed image, and of the encoded one."""
    height, width, channels = out.shape
    turned = orientation >= 5
    shown = out.reshape(width, height, channels) if turned else out
    mirrored = shown[:, ::-1] if orientation in (2, 3, 6, 7) else shown
    flipped = mirrored[::-1] if orientation in (3, 4, 7, 8) else mirrored
    return shown, flipped.transpose(1, 0, 2) if turned else flipped


def _as_rgb(image: Image.Image) -> Image.Image:
    if image.mode not in ("RGBA", "LA", "PA") and "transparency" not in image.info:
        return image.convert("RGB")
    opaque = Image.new("RGB", image.size, "white")
    layered = image.convert("RGBA")
    opaque.paste(layered, mask=layered.getchannel("A"))
    return opaque


def decode_audio(data: bytes, max_frames: int, rate_hz: int, channels: int, to_hz: int, out: np.ndarray) -> int:
    """Decode a WAV or FLAC into `out`, float32 [samples], as the average of its channels at `to_hz`.

    Returns the number of samples.

    `max_frames`, `rate_hz` and `channels` are the values from the file's header. Raises UndecodableError or soundfile's
    errors.
    """
    with soundfile.SoundFile(io.BytesIO(data)) as file:
        if (file.samplerate, file.channels) != (rate_hz, channels):
            raise UndecodableError("the audio is not what its header says")
        samples = resample_blocks(_mono_blocks(file, max_frames), rate_hz, to_hz)
    if samples.size == 0:
        raise UndecodableError("the audio is empty")
    out[: samples.size] = samples
    return samples.size


def _mono_blocks(file: soundfile.SoundFile, max_frames: int) -> Iterator[np.ndarray]:
    taken = 0
    while True:
        block: np.ndarray = file.read(frames=_BLOCK_FRAMES, dtype="float32", always_2d=True)
        taken += len(block)
        if taken > max_frames:
            raise UndecodableError("the audio is longer than its header says")
        if len(block):
            if not np.isfinite(block).all():
                raise UndecodableError("the audio holds NaN or infinity")
            with np.errstate(over="ignore"):  # an overflow to infinity is clipped like any value beyond 1
                yield np.clip(block.mean(axis=1, dtype=np.float32), -1.0, 1.0)
        if len(block) < _BLOCK_FRAMES:
            return
