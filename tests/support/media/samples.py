"""Small images, audio clips and video frames, generated from a seed."""

from __future__ import annotations

import io

import numpy as np
import soundfile
from PIL import Image


def make_image(seed: int = 0, width: int = 112, height: int = 84) -> Image.Image:
    """Returns an RGB image of coloured noise over a gradient."""
    generator = np.random.default_rng(seed)
    noise = generator.integers(0, 128, (height, width, 3))
    gradient = np.linspace(0, 127, width)[None, :, None]
    return Image.fromarray((noise + gradient).astype(np.uint8))


def make_audio(seed: int = 0, seconds: float = 1.0, rate_hz: int = 16_000) -> np.ndarray:
    """Returns two tones and a little noise, float32 [samples]. Values are 16-bit steps, so a WAV file is lossless."""
    generator = np.random.default_rng(seed)
    time = np.arange(int(seconds * rate_hz)) / rate_hz
    tones = 0.2 * np.sin(2 * np.pi * (220 + 40 * seed) * time) + 0.1 * np.sin(2 * np.pi * 1330 * time)
    samples = np.round(32768 * (tones + 0.02 * generator.standard_normal(time.size)))
    return (samples / 32768).astype(np.float32)


def encode_png(image: Image.Image) -> bytes:
    """Returns the image as a lossless PNG file."""
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def encode_wav(samples: np.ndarray, rate_hz: int = 16_000) -> bytes:
    """Returns the audio as a WAV file of 16 bits, which is lossless for audio from make_audio."""
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, rate_hz, format="WAV", subtype="PCM_16")
    return buffer.getvalue()


def make_frames(seed: int = 0, frames: int = 4, width: int = 392, height: int = 280) -> np.ndarray:
    """Returns a bright square that moves over coloured noise, uint8 [frames, height, width, 3]."""
    generator = np.random.default_rng(seed)
    video = generator.integers(0, 128, (frames, height, width, 3)).astype(np.uint8)
    for index, frame in enumerate(video):
        left = (40 * index + 20 * seed) % (width - 64)
        frame[64:128, left : left + 64] = (255, 200, 30 * (index % 8))
    return video
