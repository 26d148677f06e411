"""Tensors that fit their schema and make no sense: their request is refused, and the engine serves the next one."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
import torch

from omni_stage.errors import InvalidRequestError, ModelExecutionError
from support.omni_stages import OmniStages, run_omni_stages

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

PROMPT, ROWS = 4, 6
BIG = 2**62


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stages(tiny_checkpoint: Path) -> AsyncIterator[OmniStages]:
    async with run_omni_stages(tiny_checkpoint, "talker", "token2wav") as started:
        yield started


def talker_rows(width: int, dtype: torch.dtype, **changes: torch.Tensor) -> dict[str, torch.Tensor]:
    tensors = {
        "x": torch.full((ROWS, width), 0.1, dtype=dtype),
        "token_ids": torch.arange(ROWS),
        "mrope_positions": torch.arange(PROMPT)[:, None].repeat(1, 3),
        "mrope_delta": torch.zeros(1, dtype=torch.int64),
    }
    return tensors | changes


def positions(value: int) -> torch.Tensor:
    out = torch.arange(PROMPT)[:, None].repeat(1, 3)
    out[-1, 1] = value
    return out


HOSTILE_TALKER = {
    "position far beyond": {"mrope_positions": positions(10**9)},
    "position beyond 32 bits": {"mrope_positions": positions(BIG)},
    "position below zero": {"mrope_positions": positions(-1)},
    "position far below zero": {"mrope_positions": positions(-BIG)},
    "delta far beyond": {"mrope_delta": torch.tensor([10**9])},
    "delta beyond 32 bits": {"mrope_delta": torch.tensor([BIG])},
    "delta far below zero": {"mrope_delta": torch.tensor([-BIG])},
    "no delta": {"mrope_delta": torch.zeros(0, dtype=torch.int64)},
    "no prompt": {"mrope_positions": torch.zeros(0, 3, dtype=torch.int64)},
    "prompt longer than the rows": {"mrope_positions": torch.arange(9)[:, None].repeat(1, 3)},
}
SAMPLING = {"temperature": 0.0, "max_tokens": 4}


def talker_input(stages: OmniStages, **changes: torch.Tensor) -> dict[str, torch.Tensor]:
    schema = stages.engines["talker"].component.input_schema
    assert schema is not None
    spec = schema.spec("x")
    return talker_rows(spec.row_shape[0], getattr(torch, spec.dtype), **changes)


@pytest.mark.parametrize("case", HOSTILE_TALKER)
async def test_talker_refuses_and_lives(stages: OmniStages, case: str) -> None:
    with pytest.raises((InvalidRequestError, ModelExecutionError)):
        await stages.ask("talker", talker_input(stages, **HOSTILE_TALKER[case]), **SAMPLING)
    assert not stages.engines["talker"].is_dead
    assert (await stages.ask("talker", talker_input(stages), **SAMPLING)).token_ids


@pytest.mark.parametrize("scale", [1e30, -1e38], ids=str)
async def test_talker_survives_rows_of_any_size(stages: OmniStages, scale: float) -> None:
    rows = talker_input(stages)
    rows["x"] = torch.full_like(rows["x"], scale)
    with contextlib.suppress(InvalidRequestError, ModelExecutionError):
        await stages.ask("talker", rows, **SAMPLING)
    assert not stages.engines["talker"].is_dead
    assert (await stages.ask("talker", talker_input(stages), **SAMPLING)).token_ids


@pytest.mark.parametrize("code", [-1, -BIG, 10**9, BIG])
async def test_token2wav_refuses_and_lives(stages: OmniStages, code: int) -> None:
    with pytest.raises((InvalidRequestError, ModelExecutionError)):
        await stages.ask("token2wav", {"codes": torch.tensor([1, code, 2])}, num_inference_steps=2)
    assert not stages.engines["token2wav"].is_dead
    assert len((await stages.ask("token2wav", {"codes": torch.tensor([1, 2])}, num_inference_steps=2)).audio) > 0
