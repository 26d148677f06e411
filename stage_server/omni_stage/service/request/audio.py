"""Encodes audio into chunks, each of which can be played by itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from omni_proto.stage.v1 import events_pb2, sampling_pb2
from omni_stage.exchange.arrays import Array, to_samples
from omni_stage.service.metering import SAMPLE_BYTES

MAX_CHUNK_BYTES = 1 << 20
CHUNK_S = 0.5
"""Playing time of a chunk in seconds. It is short, so that playback can start early, but long enough to make the cost
of headers negligible."""


def encode_samples(samples: npt.NDArray[np.float32], encoding: sampling_pb2.AudioEncoding) -> bytes:
    """Returns float32 [n] in [-1, 1] as little-endian PCM. For S16, values are clipped to this range and rounded to the
    nearest integer."""
    if encoding == sampling_pb2.AUDIO_ENCODING_PCM_F32LE:
        return samples.astype("<f4", copy=False).tobytes()
    scaled: npt.NDArray[np.float32] = np.rint(np.clip(samples, -1.0, 1.0) * np.float32(32767.0))
    return scaled.astype("<i2").tobytes()


@dataclass(slots=True)
class AudioEncoder:
    """Turns one request's audio into AudioChunks, and counts its samples."""

    encoding: sampling_pb2.AudioEncoding
    sample_rate_hz: int
    samples: int = 0
    """Samples encoded so far."""

    def __post_init__(self) -> None:
        if self.encoding == sampling_pb2.AUDIO_ENCODING_UNSPECIFIED:
            self.encoding = sampling_pb2.AUDIO_ENCODING_PCM_S16LE

    def encode(self, audio: Array | None, *, last: bool) -> Iterator[events_pb2.AudioChunk]:
        """Yields chunks of about 0.5 s and at most 1 MiB. With `last`, the final chunk is marked as the last.

        With `last` but no audio, yields one empty chunk if audio was encoded before, so that the caller always sees the
        end.
        """
        flat = np.empty(0, np.float32) if audio is None else to_samples(audio)
        count = flat.size
        if count == 0:
            if last and self.samples:
                yield self._chunk(b"", 0, last=True)
            return
        step = min(max(1, int(self.sample_rate_hz * CHUNK_S)), MAX_CHUNK_BYTES // SAMPLE_BYTES[self.encoding])
        for start in range(0, count, step):
            piece = flat[start : start + step]
            yield self._chunk(encode_samples(piece, self.encoding), piece.size, last=last and start + step >= count)

    def _chunk(self, data: bytes, samples: int, *, last: bool) -> events_pb2.AudioChunk:
        chunk = events_pb2.AudioChunk(
            encoding=self.encoding,
            sample_rate_hz=self.sample_rate_hz,
            channels=1,
            first_sample=self.samples,
            last=last,
            data=data,
        )
        self.samples += samples
        return chunk
