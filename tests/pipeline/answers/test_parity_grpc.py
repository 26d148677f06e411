"""Three stage servers in separate processes, over gRPC, give the same output as transformers' Qwen2.5-Omni."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from omni_proto.client import AsyncOmniClient, user
from support.media.samples import make_audio, make_image
from support.models.grpc_parity import EXACT, check_each_alone_and_all_at_once, check_text_and_audio, media_parts
from support.models.reference import ReferencePrompt, ReferenceSettings, load_reference
from support.processes.pipelines import SAMPLES, RunningPipeline, run_pipeline

pytestmark = pytest.mark.pipeline

CASES = {
    "text": (ReferencePrompt("Tell me what the weather is like."), ReferenceSettings()),
    "sound": (ReferencePrompt("What do you hear?", audios=[make_audio(0)]), ReferenceSettings(seed=1)),
    "image": (ReferencePrompt("What do you see?", images=[make_image(0)]), ReferenceSettings(voice="Ethan")),
    "image and sound": (
        ReferencePrompt("Read the sentence slowly.", images=[make_image(1, 140, 56)], audios=[make_audio(1, 0.7)]),
        ReferenceSettings(thinker_tokens=20, talker_tokens=40, seed=2**40, steps=5, guidance=1.5),
    ),
}


async def generate(client: AsyncOmniClient, case: tuple[ReferencePrompt, ReferenceSettings]) -> Any:
    prompt, settings = case
    return await client.run(
        chat=user(*media_parts(prompt), prompt.text),
        sampling={
            "thinker": {"temperature": 0.0, "max_tokens": settings.thinker_tokens},
            "talker": {"temperature": 0.0, "repetition_penalty": 1.0, "max_tokens": settings.talker_tokens},
            "token2wav": {"num_inference_steps": settings.steps, "guidance_scale": settings.guidance},
        },
        seed=settings.seed,
        voice=settings.voice,
        **EXACT,
    )


async def compare(endpoint: str, checkpoint: Path) -> None:
    reference = load_reference(checkpoint)
    expected = {name: reference.run(prompt, settings) for name, (prompt, settings) in CASES.items()}

    def check(name: str, result: Any) -> None:
        check_text_and_audio(result, expected[name])
        assert result.token_ids["talker"] == expected[name].codec_token_ids

    await check_each_alone_and_all_at_once(endpoint, CASES, generate, check)


async def test_seed_0_small(tiny_pipeline: RunningPipeline, tiny_checkpoint: Path) -> None:
    await compare(tiny_pipeline.endpoint, tiny_checkpoint)


@pytest.mark.full  # starts another pipeline; tests/engine compares the same model with transformers in one process
async def test_seed_1_grouped_query_attention(make_tiny_checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    checkpoint = make_tiny_checkpoint(1, "gqa")
    with run_pipeline(SAMPLES / "tiny-omni-full.yaml", checkpoint, tmp_path) as running:
        await compare(running.endpoint, checkpoint)
