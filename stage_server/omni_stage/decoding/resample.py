"""Changes the sampling rate of audio, with working memory that does not depend on the rates.

It uses libsoxr's HQ recipe, as `librosa.load` does. Qwen2.5-Omni's own examples read audio with `librosa.load`
(`qwen_omni_utils.process_audio_info`), so the model gets audio that was resampled as in those examples.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
import soxr

_RECIPE: Final = "HQ"
_BLOCK: Final = 1 << 16


def resample(samples: np.ndarray, from_hz: int, to_hz: int) -> np.ndarray:
    """Resample float32 [samples] at from_hz. Returns float32 [ceil(samples * to_hz / from_hz)] at to_hz."""
    samples = np.ascontiguousarray(samples, dtype=np.float32)
    if from_hz == to_hz or samples.size == 0:
        return samples
    return resample_blocks((samples[i : i + _BLOCK] for i in range(0, samples.size, _BLOCK)), from_hz, to_hz)


def resample_blocks(blocks: Iterable[np.ndarray], from_hz: int, to_hz: int) -> np.ndarray:
    """Resample as `resample` does, but from float32 blocks [samples]. The whole input need not be in memory."""
    stream = None if from_hz == to_hz else soxr.ResampleStream(from_hz, to_hz, 1, dtype="float32", quality=_RECIPE)
    taken = 0
    pieces: list[np.ndarray] = []
    for block in blocks:
        taken += block.size
        pieces.append(block if stream is None else stream.resample_chunk(block))
    if stream is not None:
        pieces.append(stream.resample_chunk(np.empty(0, np.float32), last=True))
    # libsoxr rounds the length to the nearest integer, but librosa rounds it up.
    result = np.zeros(-(-taken * to_hz // from_hz), np.float32)
    position = 0
    for piece in pieces:
        kept = piece[: result.size - position]
        result[position : position + kept.size] = kept
        position += kept.size
    return result
