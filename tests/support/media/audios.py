"""Small audio files, encoded by FFmpeg through PyAV."""

from __future__ import annotations

import io
from typing import Any

import av
import numpy as np

from support.media.samples import make_audio

COMPRESSED = (
    *(("mp3", "libmp3lame"), ("adts", "aac"), ("mp4", "aac"), ("ogg", "libopus"), ("webm", "libopus")),
    *(("matroska", "aac"), ("ogg", "flac"), ("mp4", "alac"), ("wav", "adpcm_ms"), ("wav", "adpcm_ima_wav")),
)
"""Formats and codecs that a stage reads besides WAV and FLAC, by the names of FFmpeg's muxers and encoders."""
_PIECE = 4096


def encode_audio(
    form: str, codec: str, samples: np.ndarray, rate_hz: int, options: dict[str, str] | None = None
) -> bytes:
    """Returns float32 [samples] as an audio file."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=form, options=options or {}) as container:
        track: Any = container.add_stream(codec, rate=rate_hz, layout="mono")
        wanted = track.codec_context.format.name
        resampler = av.AudioResampler(format=wanted, layout="mono", rate=rate_hz)
        size = track.codec_context.frame_size or _PIECE
        for start in range(0, samples.size, size):
            piece = np.ascontiguousarray(samples[None, start : start + size], dtype=np.float32)
            frame = av.AudioFrame.from_ndarray(piece, format="fltp", layout="mono")
            frame.sample_rate, frame.pts = rate_hz, start
            for ready in resampler.resample(frame):
                container.mux(track.encode(ready))
        container.mux(track.encode())
    return buffer.getvalue()


def encode_tone(form: str, codec: str, options: dict[str, str] | None = None) -> bytes:
    """Returns a second of make_audio() as an audio file at 48 kHz."""
    return encode_audio(form, codec, make_audio(rate_hz=48_000), 48_000, options)
