"""Stages load the shards that `fetch` downloads: those with their component's weights, and no others."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import torch

from omni_stage.fetch.checkpoint import ALL_WEIGHTS, INDEX, select_weights
from omni_stage.models.qwen2_5_omni.tiny import write_tiny_checkpoint
from omni_stage.models.registry import weight_prefixes
from support.engines.omni_stages import OmniStages, check_parity, run_omni_stages
from support.models.reference import ReferencePrompt, ReferenceSettings, load_reference

pytestmark = pytest.mark.engine

SETTINGS = ReferenceSettings(thinker_tokens=8, talker_tokens=8)
PROMPT = ReferencePrompt("Hello")
BFLOAT16_TOLERANCE = 0.1
"""The largest error of a row's values, relative to the rows' standard deviation. bfloat16 has 8 significant bits."""


def link_part(whole: Path, component: str, directory: Path) -> set[str]:
    """Links the files that `fetch` would download for a component. Returns the names of the shards."""
    directory.mkdir()
    selected = select_weights(json.loads((whole / INDEX).read_text()), weight_prefixes(component))
    shards = set(selected.values())
    for file in whole.iterdir():
        if file.name != INDEX and (file.name in shards or not file.match(ALL_WEIGHTS)):
            (directory / file.name).symlink_to(file)
    (directory / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": selected}))
    return shards


async def test_every_stage_of_qwen2_5_omni(tiny_checkpoint: Path, tmp_path: Path) -> None:
    shards: dict[str, set[str]] = {}
    engines = {}
    async with AsyncExitStack() as stack:
        for stage in ("thinker", "talker", "token2wav"):
            directory = tmp_path / stage
            shards[stage] = link_part(tiny_checkpoint, f"qwen2_5_omni/{stage}", directory)
            engines |= (await stack.enter_async_context(run_omni_stages(directory, stage))).engines
        check_parity(
            await OmniStages(engines).run_chain(PROMPT, SETTINGS), load_reference(tiny_checkpoint).run(PROMPT, SETTINGS)
        )
    assert any(part < set().union(*shards.values()) for part in shards.values()), "every stage had every shard"


async def test_the_published_type_is_computed_and_sent(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """If the checkpoint's config says bfloat16, as the published ones do, a stage computes and sends rows in bfloat16.

    The rows are close to those computed in float32.
    """
    checkpoint = write_tiny_checkpoint(tmp_path)
    expected = load_reference(tiny_checkpoint).run(PROMPT, SETTINGS)
    async with run_omni_stages(checkpoint) as stages:
        ours = await stages.run_chain(PROMPT, SETTINGS)
    x, prompt = ours["thinker"].tensors["x"], slice(len(expected.prompt_token_ids))
    assert x.dtype is torch.bfloat16
    difference = (x[prompt].float() - expected.rows[prompt]).abs().max() / expected.rows[prompt].std()
    assert difference < BFLOAT16_TOLERANCE
    assert ours["token2wav"].audio.numel() == 480 * len(ours["talker"].tensors["codes"]) > 0
    assert ours["token2wav"].audio.isfinite().all()
