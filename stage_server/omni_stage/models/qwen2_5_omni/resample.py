"""Changes the sampling rate of a sound, without a library that the serving image would need for this alone."""

from __future__ import annotations

import math

import numpy as np
import torch

_ZERO_CROSSINGS = 24
"""Half width of the filter, in zero crossings of its sinc: about 80 dB below the stop band."""


def resample(samples: np.ndarray, from_hz: int, to_hz: int) -> np.ndarray:
    """float32 [samples] at from_hz -> float32 [ceil(samples * to_hz / from_hz)] at to_hz.

    Band-limited interpolation: a sinc filter under a Hann window, as one strided convolution for every phase.
    """
    samples = np.ascontiguousarray(samples, dtype=np.float32)
    if from_hz == to_hz or samples.size == 0:
        return samples
    divisor = math.gcd(from_hz, to_hz)
    old, new = from_hz // divisor, to_hz // divisor
    filters, reach = _make_filters(old, new)
    padded = torch.nn.functional.pad(torch.from_numpy(samples.copy())[None, None], (reach, reach + old))
    phases = torch.nn.functional.conv1d(padded, filters, stride=old)  # [1, new, blocks]
    length = math.ceil(samples.size * new / old)
    result: np.ndarray = phases[0].T.reshape(-1)[:length].numpy()
    return result


def _make_filters(old: int, new: int) -> tuple[torch.Tensor, int]:
    """One filter for each output phase, float32 [new, 1, old + 2 * reach], and the reach in input samples."""
    cutoff = min(1.0, new / old)
    reach = math.ceil(_ZERO_CROSSINGS / cutoff)
    taps = torch.arange(-reach, old + reach, dtype=torch.float64)
    distance = (taps[None] - torch.arange(new, dtype=torch.float64)[:, None] * old / new) * cutoff
    window = torch.cos(distance.clamp(-_ZERO_CROSSINGS, _ZERO_CROSSINGS) * math.pi / _ZERO_CROSSINGS / 2) ** 2
    return (torch.sinc(distance) * window * cutoff).float()[:, None], reach
