"""Our three stages compared with transformers' Qwen2.5-Omni, on tiny checkpoints of two seeds and two shapes.

Tokens must be equal, rows within 1e-4 and audio within 1e-5.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from omni_stage.fetch.checkpoint import ALL_WEIGHTS, INDEX, select_weights
from omni_stage.models.registry import weight_prefixes
from support.engines.omni_stages import OmniStages, check_parity, run_omni_stages
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
STAGES = ("thinker", "talker", "token2wav")


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


@pytest.mark.parametrize(("seed", "shape"), CHECKPOINTS)
async def test_prompts_alone_and_concurrently(
    make_tiny_checkpoint: Callable[..., Path], tmp_path: Path, seed: int, shape: str
) -> None:
    """One prompt runs by itself, then all kinds run concurrently in shared batches.

    Each stage has only the shards with its component's weights, as `fetch` downloads them.
    """
    checkpoint = make_tiny_checkpoint(seed, shape)
    references = {name: load_reference(checkpoint).run(prompt, SETTINGS) for name, prompt in PROMPTS.items()}
    parts = {stage: link_part(checkpoint, f"qwen2_5_omni/{stage}", tmp_path / stage) for stage in STAGES}
    assert any(part < set().union(*parts.values()) for part in parts.values()), "every stage has every shard"
    async with AsyncExitStack() as stack:
        started = [await stack.enter_async_context(run_omni_stages(tmp_path / stage, stage)) for stage in STAGES]
        stages = OmniStages({stage: engine for one in started for stage, engine in one.engines.items()})
        alone = await stages.run_chain(PROMPTS["image and sound"], SETTINGS)
        together = await asyncio.gather(*(stages.run_chain(prompt, SETTINGS) for prompt in PROMPTS.values()))
    check_parity(alone, references["image and sound"])
    for name, ours in zip(PROMPTS, together, strict=True):
        check_parity(ours, references[name])


@pytest.mark.full  # test_parity_video.py has prompts that a step's budget cuts into chunks
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
