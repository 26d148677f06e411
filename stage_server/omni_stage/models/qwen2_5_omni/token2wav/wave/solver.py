"""From noise to mel: the request's own noise, the time points, and the Runge-Kutta step between two of them.

transformers' `sample()` draws its noise from the global generator, so concurrent requests would change each other's
audio. With this solver, each request's noise comes from its own seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import torch

_SWAY = -1.0
"""Moves the time points towards the start. The default in transformers."""

Step = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""(value at time begin, begin [], end []) -> the value at time end."""
Velocity = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""(time [], value) -> rate of change of the value."""


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


def advance(velocity: Velocity, value: torch.Tensor, begin: torch.Tensor, end: torch.Tensor) -> torch.Tensor:
    """Returns the value at time `end`, given `value` at time `begin`: the fourth-order 3/8 rule, four evaluations."""
    step = end - begin
    k1 = velocity(begin, value)
    k2 = velocity(begin + step * (1 / 3), value + step * k1 * (1 / 3))
    k3 = velocity(begin + step * (2 / 3), value + step * (k2 - k1 * (1 / 3)))
    k4 = velocity(end, value + step * (k1 - k2 + k3))
    return value + (k1 + 3 * (k2 + k3) + k4) * step / 8


def solve(step: Step, start: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
    """Returns the value at the last time point. `start` is the value at the first."""
    value = start
    for begin, end in pairwise(times):
        value = step(value, begin, end)
    return value
