"""Tensors that match the edge's schema but hold nonsense fail at most their request: the engine serves the next one."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch

from omni_stage.errors import InvalidRequestError, ModelExecutionError
from support.engines.omni_stages import OmniStages, run_omni_stages
from support.stages.hostile_edges import BIG, HOSTILE_FAMILIES, HostileFamily

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

SAMPLING = {"temperature": 0.0, "max_tokens": 4}


@dataclass
class Attacked:
    """The talker and the last stage (token2wav or code2wav) of a family."""

    family: HostileFamily
    stages: OmniStages

    def component(self, stage: str) -> Any:
        return self.stages.engines[stage].component

    async def check_lives(self, stage: str) -> None:
        assert not self.stages.engines[stage].is_dead
        if stage == "talker":
            good = self.family.talker(self.component(stage))
            assert (await self.stages.ask(stage, good, **SAMPLING)).token_ids
        else:
            good = {"codes": self.family.codes(self.component(stage), 1)}
            assert len((await self.stages.ask(stage, good, **self.family.sampling)).audio) > 0


@pytest_asyncio.fixture(
    scope="module",
    loop_scope="module",
    params=[
        "qwen2_5_omni",
        # Starts its own engines. tests/unit/models/qwen3_omni/test_qwen3_components.py tests the same without engines.
        pytest.param("qwen3_omni", marks=pytest.mark.full),
    ],
)
async def attacked(
    request: pytest.FixtureRequest, make_tiny_checkpoint: Callable[..., Path]
) -> AsyncIterator[Attacked]:
    family = HOSTILE_FAMILIES[request.param]
    checkpoint = make_tiny_checkpoint(0, "small", request.param)
    async with run_omni_stages(checkpoint, "talker", family.audio_stage, family=request.param) as started:
        yield Attacked(family, started)


async def test_talker_refuses_and_lives(attacked: Attacked) -> None:
    component = attacked.component("talker")
    cases = attacked.family.hostile_talker(component)
    assert len(cases) >= 10
    for name, changes in cases.items():
        tensors = {**attacked.family.talker(component), **changes}
        refused = False
        try:
            await attacked.stages.ask("talker", tensors, **SAMPLING)
        except (InvalidRequestError, ModelExecutionError):
            refused = True
        assert refused, name
        await attacked.check_lives("talker")


@pytest.mark.parametrize("scale", [1e30, -1e38], ids=str)
async def test_talker_survives_rows_of_any_size(attacked: Attacked, scale: float) -> None:
    component = attacked.component("talker")
    tensors = dict(attacked.family.talker(component))
    if "x" not in tensors:
        tensors |= attacked.family.hostile_talker(component)["position below zero"]
        tensors["media_positions"] = tensors["media_positions"].abs()
    rows = "x" if "x" in tensors else "media"
    tensors[rows] = torch.full_like(tensors[rows], scale)
    with contextlib.suppress(InvalidRequestError, ModelExecutionError):
        await attacked.stages.ask("talker", tensors, **SAMPLING)
    await attacked.check_lives("talker")


@pytest.mark.parametrize("code", [-1, -BIG, 10**9, BIG])
async def test_the_last_stage_refuses_and_lives(attacked: Attacked, code: int) -> None:
    stage = attacked.family.audio_stage
    codes = attacked.family.codes(attacked.component(stage), code)
    with pytest.raises((InvalidRequestError, ModelExecutionError)):
        await attacked.stages.ask(stage, {"codes": codes}, **attacked.family.sampling)
    await attacked.check_lives(stage)
