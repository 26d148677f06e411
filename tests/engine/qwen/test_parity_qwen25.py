"""Our three stages compared with transformers' Qwen2.5-Omni, on tiny checkpoints of two seeds and two shapes.

Tokens must be equal, rows within 1e-4 and audio within 1e-5.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from support.engines.omni_stages import check_parity, run_omni_stages
from support.media.samples import make_audio, make_image
from support.models.reference import ReferencePrompt, ReferenceSettings, load_reference

pytestmark = pytest.mark.engine

CHECKPOINTS = [
    # tests/pipeline/answers/test_parity_grpc.py tests the same through stage servers.
    pytest.param(0, "small", id="small-seed0", marks=pytest.mark.full),
    pytest.param(1, "small", id="small-seed1", marks=pytest.mark.full),
    pytest.param(0, "gqa", id="gqa-seed0", marks=pytest.mark.full),
    pytest.param(1, "gqa", id="gqa-seed1"),
]
"""Seed and shape. `make full` runs all four, `make test-all` only the last."""

PROMPTS = {
    "text": ReferencePrompt("Tell me what the weather is like."),
    "sound": ReferencePrompt("What do you hear?", audios=[make_audio(0)]),
    "image": ReferencePrompt("What do you see?", images=[make_image(0)]),
    "image and sound": ReferencePrompt(
        "Read the sentence slowly.", images=[make_image(1, 140, 56)], audios=[make_audio(1, 0.7)]
    ),
    "second turn": ReferencePrompt("And this?", audios=[make_audio(2, 0.4)], history=[("Hello!", "你好. Hi there.")]),
}
SETTINGS = ReferenceSettings()


@pytest.mark.parametrize(("seed", "shape"), CHECKPOINTS)
async def test_prompts_alone_and_concurrently(make_tiny_checkpoint: Callable[..., Path], seed: int, shape: str) -> None:
    """One prompt runs by itself, then all kinds run concurrently in shared batches."""
    checkpoint = make_tiny_checkpoint(seed, shape)
    references = {name: load_reference(checkpoint).run(prompt, SETTINGS) for name, prompt in PROMPTS.items()}
    async with run_omni_stages(checkpoint) as stages:
        alone = await stages.run_chain(PROMPTS["image and sound"], SETTINGS)
        together = await asyncio.gather(*(stages.run_chain(prompt, SETTINGS) for prompt in PROMPTS.values()))
    check_parity(alone, references["image and sound"])
    for name, ours in zip(PROMPTS, together, strict=True):
        check_parity(ours, references[name])


async def test_prompt_in_chunks(make_tiny_checkpoint: Callable[..., Path]) -> None:
    """A budget of 32 tokens per step cuts the prompts of thinker and talker into chunks. Each row is sent once."""
    checkpoint = make_tiny_checkpoint(0, "gqa")
    sentence = "The road goes through the hills, past the mill and the old stone bridge, to the town. "
    prompts = [ReferencePrompt(2 * sentence), PROMPTS["text"]]
    expected = [load_reference(checkpoint).run(prompt, SETTINGS) for prompt in prompts]
    assert len(expected[0].prompt_token_ids) > 64
    async with run_omni_stages(checkpoint, max_media=0, max_num_batched_tokens=32) as stages:
        ours = await asyncio.gather(*(stages.run_chain(prompt, SETTINGS) for prompt in prompts))
    for mine, theirs in zip(ours, expected, strict=True):
        check_parity(mine, theirs)
