"""Writes returned audio as WAV. The standard library writes 16-bit integers; the header of 32-bit floats is made
here."""

from __future__ import annotations

import struct
import wave
from pathlib import Path
from typing import Final

from omni_proto.client.responses.events import PCM_F32LE, PCM_S16LE
from omni_proto.errors import ArgumentError

_WAVE_FORMAT_IEEE_FLOAT: Final = 3
_SAMPLE_BYTES: Final = {PCM_S16LE: 2, PCM_F32LE: 4}
_MAX_DATA_BYTES: Final = 2**32 - 1 - 64


def sample_bytes(encoding: str) -> int:
    """Returns the bytes of one sample of one channel. Raises ArgumentError for an unknown encoding."""
    size = _SAMPLE_BYTES.get(encoding)
    if size is None:
        raise ArgumentError(f"audio encoding {encoding!r} is unknown; use {PCM_S16LE!r} or {PCM_F32LE!r}")
    return size


def write_wav(
    path: str | Path, data: bytes, *, sample_rate_hz: int, channels: int = 1, encoding: str = PCM_S16LE
) -> None:
    """Write interleaved samples as a WAV file. Raises ArgumentError; OSError of the file."""
    frame_bytes = sample_bytes(encoding) * channels
    if sample_rate_hz < 1 or channels < 1 or len(data) % frame_bytes:
        raise ArgumentError(
            f"{len(data)} bytes are not whole {encoding} frames of {channels} channels at {sample_rate_hz} Hz"
        )
    if len(data) > _MAX_DATA_BYTES:
        raise ArgumentError(f"a WAV file holds at most {_MAX_DATA_BYTES} bytes of samples, got {len(data)}")
    if encoding == PCM_F32LE:
        Path(path).write_bytes(_float_header(len(data), sample_rate_hz, channels) + data)
        return
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(sample_rate_hz)
        file.writeframes(data)


def _float_header(data_bytes: int, sample_rate_hz: int, channels: int) -> bytes:
    """Returns a RIFF header with the fact chunk that formats other than PCM must have."""
    frame_bytes = 4 * channels
    fmt = struct.pack(
        "<HHIIHHH", _WAVE_FORMAT_IEEE_FLOAT, channels, sample_rate_hz, sample_rate_hz * frame_bytes, frame_bytes, 32, 0
    )
    fact = struct.pack("<I", data_bytes // frame_bytes)
    body = b"WAVE" + _chunk(b"fmt ", fmt) + _chunk(b"fact", fact) + struct.pack("<4sI", b"data", data_bytes)
    return struct.pack("<4sI", b"RIFF", len(body) + data_bytes) + body


def _chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack("<4sI", name, len(content)) + content
