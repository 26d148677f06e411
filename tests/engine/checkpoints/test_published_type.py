"""Stages compute in the type that the checkpoint names. The published ones say bfloat16."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from omni_stage.models.qwen2_5_omni.tiny import write_tiny_checkpoint
from support.engines.omni_stages import run_omni_stages
from support.models.reference import ReferencePrompt, ReferenceSettings, load_reference

pytestmark = pytest.mark.engine

SETTINGS = ReferenceSettings(thinker_tokens=8, talker_tokens=8)
PROMPT = ReferencePrompt("Hello")
BFLOAT16_TOLERANCE = 0.1
"""The largest error of a row's values, relative to the rows' standard deviation. bfloat16 has 8 significant bits."""


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
