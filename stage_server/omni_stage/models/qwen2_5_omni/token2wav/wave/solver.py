"""From noise to mel: the request's own noise, the time points, and the Runge-Kutta step between two of them.

transformers' `sample()` draws its noise from the global generator, so concurrent requests would change each other's
audio. With this solver, each request's noise comes from its own seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

_SWAY = -1.0
"""Moves the time points towards the start. The default in transformers."""

Velocity = Callable[[int, torch.Tensor], torch.Tensor]
"""(which of the step's evaluations, 0 to 3; value) -> rate of change of the value."""


def make_noise(seed: int, frames: int, mel_bins: int, *, first_frame: int = 0) -> torch.Tensor:
    """Returns float32 [1, frames, mel_bins] on the CPU: torch.randn's values for this seed, from first_frame on.

    torch draws normal numbers in groups of 16. So a frame's noise does not depend on the range of frames if
    (first_frame + frames) x mel_bins is a multiple of 16.
    """
    whole = torch.randn([1, first_frame + frames, mel_bins], generator=torch.Generator().manual_seed(seed))
    return whole[:, first_frame:]


def time_points(count: int, device: torch.device) -> torch.Tensor:
    """Returns float32 [count] from 0 to 1, denser at the start."""
    points = torch.linspace(0, 1, count, device=device, dtype=torch.float32)
    return points + _SWAY * (torch.cos(math.pi / 2 * points) - 1 + points)


def evaluation_times(begin: torch.Tensor, end: torch.Tensor) -> torch.Tensor:
    """Returns float32 [4]: the time points at which a step from `begin` [] to `end` [] evaluates the velocity."""
    step = end - begin
    return torch.stack([begin, begin + step * (1 / 3), begin + step * (2 / 3), end])


def advance(velocity: Velocity, value: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
    """Returns the value after a step of this length []: the fourth-order 3/8 rule, four evaluations."""
    third = step * (1 / 3)
    k1 = velocity(0, value)
    k2 = velocity(1, torch.addcmul(value, k1, third))
    k3 = velocity(2, torch.addcmul(value, torch.sub(k2, k1, alpha=1 / 3), step))
    k4 = velocity(3, torch.addcmul(value, k1 - k2 + k3, step))
    return torch.addcmul(value, torch.add(k1 + k4, k2 + k3, alpha=3), step / 8)
