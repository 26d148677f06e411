"""Our ODE solver: its path is that of transformers' solver, and its noise that of torch's global generator."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import RungeKutta4ODESolver

from omni_stage.models.qwen2_5_omni.token2wav.wave.speech import advance, evaluation_times, make_noise, time_points


def velocity(time: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return torch.sin(3 * value) + time * value


def solve(
    function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], start: torch.Tensor, times: torch.Tensor
) -> torch.Tensor:
    value = start
    for begin, end in pairwise(times):
        moments = evaluation_times(begin, end)
        value = advance(lambda index, value, moments=moments: function(moments[index], value), value, end - begin)
    return value


@pytest.mark.parametrize("count", [2, 4, 10, 33])
def test_path_is_transformers_own(count: int) -> None:
    start = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0))
    times = time_points(count, torch.device("cpu"))
    expected = RungeKutta4ODESolver(function=velocity, initial_value=start).integrate(times)[-1]
    torch.testing.assert_close(solve(velocity, start, times), expected, atol=1e-6, rtol=0)


def test_solver_is_of_fourth_order() -> None:
    def grow(count: int) -> float:
        times = torch.linspace(0, 1, count).double()
        return float(solve(lambda time, value: time * value, torch.ones(()).double(), times))

    errors = [abs(grow(count) - math.exp(0.5)) for count in (5, 9)]
    assert errors[0] / errors[1] > 12


def test_points_run_from_zero_to_one_denser_at_the_start() -> None:
    points = time_points(10, torch.device("cpu"))
    assert (points[0].item(), round(points[-1].item(), 6)) == (0.0, 1.0)
    gaps = points.diff()
    assert bool((gaps > 0).all())
    assert gaps[0] < gaps[-1]


@pytest.mark.parametrize("seed", [0, 7, 2**63 - 1])
def test_noise_is_that_of_the_global_generator(seed: int) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        expected = torch.randn([1, 6, 4])
    state = torch.random.get_rng_state()
    assert torch.equal(make_noise(seed, 6, 4), expected)
    assert torch.equal(state, torch.random.get_rng_state()), "the global generator's state must not change"
