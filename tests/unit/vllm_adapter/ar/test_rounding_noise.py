"""The check of compiled code takes its limit from the model: it passes correct code and refuses one wrong row, at any
depth."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from omni_stage.vllm_adapter.ar.compiled_check import (
    LEAST_TOLERANCES,
    MOST_TOLERANCE,
    Rehearsed,
    find_difference,
    find_tolerance,
    shaken,
)

WIDTH, HEADS, INNER, ROWS = 256, 4, 192, 16


def norm(value: torch.Tensor) -> torch.Tensor:
    wide = value.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(value.dtype)


class Layer(nn.Module):
    """A layer of a decoder in the model's own code: every result is rounded to the dtype."""

    def __init__(self) -> None:
        super().__init__()
        sizes = [(WIDTH, WIDTH)] * 4 + [(WIDTH, INNER), (WIDTH, INNER), (INNER, WIDTH)]
        self.weights = nn.ParameterList(torch.randn(size) * size[0] ** -0.5 for size in sizes)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        query, key, value, out, gate, up, down = (weight.to(hidden.dtype) for weight in self.weights)
        normed = norm(hidden)
        heads = [(normed @ weight).view(ROWS, HEADS, -1).transpose(0, 1) for weight in (query, key, value)]
        mixed = F.scaled_dot_product_attention(norm(heads[0]), norm(heads[1]), heads[2], is_causal=True)
        hidden = hidden + mixed.transpose(0, 1).reshape(ROWS, WIDTH) @ out
        normed = norm(hidden)
        return hidden + (F.silu(normed @ gate) * (normed @ up)) @ down


class Decoder(nn.Module):
    def __init__(self, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(depth))

    def forward(self, hidden: torch.Tensor, *, fused: bool = False) -> torch.Tensor:
        """`fused`: as a compiler would compute it, rounding only what a layer returns."""
        for layer in self.layers:
            hidden = layer(hidden.float()).to(hidden.dtype) if fused else layer(hidden)
        return norm(hidden)


def rehearsed(hidden: torch.Tensor) -> list[Rehearsed]:
    return [Rehearsed("prefill", hidden.float(), None)]


@pytest.mark.parametrize("depth", [20, 28, 48, 64])
@torch.inference_mode()
def test_correct_code_passes_and_a_wrong_row_is_refused(depth: int) -> None:
    torch.manual_seed(depth)
    model = Decoder(depth).bfloat16()
    given = torch.randn(ROWS, WIDTH).bfloat16()
    eager = rehearsed(model(given))
    with shaken(model):
        noisy = rehearsed(model(given))
    tolerance = find_tolerance(eager, noisy, torch.bfloat16)
    assert find_difference(rehearsed(model(given, fused=True)), eager, tolerance) == ""
    wrong = given.clone()
    wrong[-1] = given[0]
    assert "in the worst request" in find_difference(rehearsed(model(wrong)), eager, tolerance)
    torch.testing.assert_close(model(given).float(), eager[0].hidden, msg="the hooks are gone")


@torch.inference_mode()
def test_the_limit_grows_with_depth() -> None:
    """A fixed limit of 2 % refused correct code of 48 layers."""
    torch.manual_seed(0)
    model, given = Decoder(48).bfloat16(), torch.randn(ROWS, WIDTH).bfloat16()
    eager = rehearsed(model(given))
    assert find_difference(rehearsed(model(given, fused=True)), eager, LEAST_TOLERANCES[torch.bfloat16])


def test_the_limit_is_bounded() -> None:
    """A model that amplifies rounding without bound cannot be checked, but nothing passes because of that."""
    one = rehearsed(torch.ones(2, 4))
    assert find_tolerance(one, one, torch.bfloat16) == LEAST_TOLERANCES[torch.bfloat16]
    assert find_tolerance(one, rehearsed(torch.zeros(2, 4)), torch.bfloat16) == MOST_TOLERANCE
    assert (
        find_tolerance(one, rehearsed(torch.full((2, 4), torch.nan)), torch.float32) == LEAST_TOLERANCES[torch.float32]
    )
