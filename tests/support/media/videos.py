"""Small videos, encoded by FFmpeg through PyAV."""

from __future__ import annotations

import io
import struct
from fractions import Fraction
from typing import Any

import av
import numpy as np

from support.media.samples import make_frames

_RATE_HZ = 48_000


def encode_video(
    form: str = "mp4",
    picture: str = "libx264",
    audio: str | None = "aac",
    *,
    frames: int = 20,
    fps: int = 10,
    width: int = 160,
    height: int = 120,
    times: list[int] | None = None,
    options: dict[str, str] | None = None,
) -> bytes:
    """Returns a video of a moving square, with a tone of 440 Hz for `frames` / `fps` seconds (none if `sound` is None).

    times: the time of each frame in milliseconds, instead of a constant rate.
    """
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=form, options=options or {}) as container:
        stream: Any = container.add_stream(picture, rate=fps)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.thread_count = 1
        if times is not None:
            stream.codec_context.time_base = Fraction(1, 1000)
        track: Any = None if audio is None else container.add_stream(audio, rate=_RATE_HZ, layout="mono")
        for index, pixels in enumerate(make_frames(0, frames, width, height)):
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            if times is not None:
                frame.pts, frame.time_base = times[index], Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
        if track is not None:
            _add_tone(container, track, frames / fps)
    return buffer.getvalue()


def turn_track(data: bytes, quarter_turns: int) -> bytes:
    """Returns an MP4 or QuickTime file whose first track says that its frames must be turned clockwise."""
    cos, sin = ((1, 0), (0, 1), (-1, 0), (0, -1))[quarter_turns]
    place = data.index(b"tkhd") + 4 + 40  # the matrix, in a header of version 0
    turned = bytearray(data)
    struct.pack_into(">5i", turned, place, cos << 16, sin << 16, 0, -sin << 16, cos << 16)
    return bytes(turned)


def encode_tracks(count: int) -> bytes:
    """Returns a Matroska file of `count` audio tracks without a picture."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="matroska") as container:
        tracks: list[Any] = [container.add_stream("pcm_s16le", rate=8000, layout="mono") for _ in range(count)]
        samples = np.zeros((1, 800), np.int16)
        for track in tracks:
            frame = av.AudioFrame.from_ndarray(samples, format="s16", layout="mono")
            frame.sample_rate, frame.pts, frame.time_base = 8000, 0, Fraction(1, 8000)
            container.mux(track.encode(frame))
    return buffer.getvalue()


def _add_tone(container: Any, track: Any, seconds: float) -> None:
    time = np.arange(int(seconds * _RATE_HZ)) / _RATE_HZ
    samples = (0.3 * np.sin(2 * np.pi * 440 * time)).astype(np.float32)[None]
    for start in range(0, samples.shape[1], 960):
        piece = np.ascontiguousarray(samples[:, start : start + 960])
        frame = av.AudioFrame.from_ndarray(piece, format="fltp", layout="mono")
        frame.sample_rate, frame.pts, frame.time_base = _RATE_HZ, start, Fraction(1, _RATE_HZ)
        container.mux(track.encode(frame))
    container.mux(track.encode())
