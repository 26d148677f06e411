"""Videos, with and without their audio, compared with transformers' Qwen2.5-Omni and Qwen3-Omni."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from support.engines.omni_stages import check_parity, run_omni_stages
from support.media.samples import make_audio, make_frames, make_image
from support.models import qwen3_chain
from support.models.reference import ReferencePrompt, ReferenceSettings, load_reference
from support.models.reference_qwen3 import Qwen3Settings, load_qwen3_reference

pytestmark = pytest.mark.engine


def prompts(patch: int) -> dict[str, ReferencePrompt]:
    """Returns prompts with videos of 140 or 160 tokens per second. `patch` is the width of a token in pixels.

    Audio clips that share a prompt with others last at least one second (docs/qwen3-omni.md, Limits).
    """
    size = {"width": 14 * patch, "height": 10 * patch}
    two, five = make_frames(0, 4, **size), make_frames(1, 5, **size)
    return {
        "video": ReferencePrompt("What happens?", videos=[five]),
        "heard": ReferencePrompt("What happens?", videos=[two], heard=[make_audio(0, 2.3)]),
        "heard beside others": ReferencePrompt(
            "Compare them.",
            images=[make_image(0)],
            audios=[make_audio(1, 1.2)],
            videos=[two],
            heard=[make_audio(2, 1.6)],
        ),
        "two heard": ReferencePrompt(
            "Compare them.", videos=[two, five[:2]], heard=[make_audio(0, 1.9), make_audio(1, 1.1)]
        ),
        "wide, short": ReferencePrompt(
            "?", videos=[make_frames(1, 2, 40 * patch, 4 * patch)], heard=[make_audio(1, 0.6)]
        ),
    }


ALONE = "heard beside others"
SHORT = ReferenceSettings(thinker_tokens=8, talker_tokens=12)


async def test_qwen2_5(make_tiny_checkpoint: Callable[..., Path]) -> None:
    """One prompt runs alone, then all run concurrently. The step's token budget splits prompts at arbitrary tokens."""
    checkpoint, asked = make_tiny_checkpoint(0, "small"), prompts(28)
    expected = {name: load_reference(checkpoint).run(prompt, SHORT) for name, prompt in asked.items()}
    limits = {"max_num_batched_tokens": 320, "kv_cache_memory_mib": 32}
    async with run_omni_stages(checkpoint, "thinker", "talker", "token2wav", **limits) as stages:
        check_parity(await stages.run_chain(asked[ALONE], SHORT), expected[ALONE])
        together = await asyncio.gather(*(stages.run_chain(prompt, SHORT) for prompt in asked.values()))
    for name, ours in zip(asked, together, strict=True):
        check_parity(ours, expected[name])


async def test_qwen3(make_tiny_checkpoint: Callable[..., Path]) -> None:
    """As above, with Qwen3-Omni. Every code of the talker is compared."""
    checkpoint, asked = make_tiny_checkpoint(0, "small", "qwen3_omni"), prompts(32)
    settings = Qwen3Settings(thinker_tokens=8, frames=6)
    expected = {name: load_qwen3_reference(checkpoint).run(prompt, settings) for name, prompt in asked.items()}
    limits = {"max_num_batched_tokens": 320, "kv_cache_memory_mib": 32}
    async with run_omni_stages(checkpoint, family="qwen3_omni", **limits) as stages:
        alone = await qwen3_chain.run_chain(stages, asked[ALONE], settings)
        qwen3_chain.check_parity(alone, expected[ALONE])
        together = await asyncio.gather(
            *(qwen3_chain.run_streamed(stages, prompt, settings) for prompt in asked.values())
        )
    for name, ours in zip(asked, together, strict=True):
        qwen3_chain.check_parity(ours, expected[name])
