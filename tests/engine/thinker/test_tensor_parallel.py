"""With each model sharded over two processes (gloo), the thinker's rows and both models' tokens match transformers'."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from support.engines.omni_stages import ROWS_TOLERANCE, run_omni_stages
from support.models.qwen3_chain import talking
from support.models.reference import ReferenceModel, ReferencePrompt, ReferenceSettings
from support.models.reference_qwen3 import Qwen3Settings, load_qwen3_reference

pytestmark = [pytest.mark.engine, pytest.mark.full]


async def test_two_shards_answer_as_one(make_tiny_checkpoint: Callable[..., Path]) -> None:
    checkpoint = make_tiny_checkpoint(0, "gqa")
    prompt, settings = ReferencePrompt("What is this?"), ReferenceSettings(thinker_tokens=12, talker_tokens=12)
    expected = ReferenceModel(checkpoint).run(prompt, settings)
    greedy = {"temperature": 0.0, "repetition_penalty": 1.0}
    # The budget of 24 tokens per step splits the prompt.
    arguments = {"tensor_parallel_size": 2, "max_num_batched_tokens": 24}
    async with run_omni_stages(checkpoint, "thinker", **arguments) as stages:
        thinker = await stages.ask("thinker", prompt.to_user_prompt(), **greedy, max_tokens=settings.thinker_tokens)
    assert thinker.token_ids == expected.thinker_token_ids
    torch.testing.assert_close(thinker.tensors["x"], expected.rows, atol=ROWS_TOLERANCE, rtol=0)
    assert thinker.tensors["mrope_positions"].tolist() == expected.mrope_positions.tolist()
    async with run_omni_stages(checkpoint, "talker", **arguments) as stages:
        greedy["repetition_penalty"] = settings.repetition_penalty
        talker = await stages.ask(
            "talker", thinker.tensors, settings.voice, **greedy, max_tokens=settings.talker_tokens
        )
    assert talker.token_ids == expected.codec_token_ids


async def test_two_shards_predict_the_same_frames(make_tiny_checkpoint: Callable[..., Path]) -> None:
    """Each of Qwen3-Omni's talkers has a whole code predictor, whose codes are part of its next input."""
    checkpoint = make_tiny_checkpoint(0, "wide", "qwen3_omni")
    prompt, settings = ReferencePrompt("What is this?"), Qwen3Settings()
    expected = load_qwen3_reference(checkpoint).run(prompt, settings)
    greedy = {"temperature": 0.0, "repetition_penalty": 1.0}
    async with run_omni_stages(checkpoint, "thinker", family="qwen3_omni") as stages:
        thinker = await stages.ask("thinker", prompt.to_user_prompt(), **greedy, max_tokens=settings.thinker_tokens)
    async with run_omni_stages(checkpoint, "talker", family="qwen3_omni", tensor_parallel_size=2) as stages:
        talker = await stages.ask("talker", thinker.tensors, settings.voice, **talking(settings))
    assert talker.tensors["codes"].tolist() == expected.codes.tolist()
