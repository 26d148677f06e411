"""Three stage servers as processes of their own, over gRPC, against transformers' own Qwen2.5-Omni."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from omni_proto.client import AsyncOmniClient, audio_part, image_part, user
from support.media import encode_png, encode_wav, make_image, make_sound
from support.omni_stages import SOUND_TOLERANCE
from support.pipelines import SAMPLES, RunningPipeline, run_pipeline
from support.reference import Reference, ReferencePrompt, ReferenceSettings, load_reference

pytestmark = pytest.mark.pipeline

CASES = {
    "text": (ReferencePrompt("Tell me what the weather is like."), ReferenceSettings()),
    "sound": (ReferencePrompt("What do you hear?", sounds=[make_sound(0)]), ReferenceSettings(seed=1)),
    "image": (ReferencePrompt("What do you see?", images=[make_image(0)]), ReferenceSettings(voice="Ethan")),
    "image and sound": (
        ReferencePrompt("Read the sentence slowly.", images=[make_image(1, 140, 56)], sounds=[make_sound(1, 0.7)]),
        ReferenceSettings(thinker_tokens=20, talker_tokens=40, seed=2**40, steps=5, guidance=1.5),
    ),
}


async def generate(client: AsyncOmniClient, prompt: ReferencePrompt, settings: ReferenceSettings) -> Any:
    parts = [*(image_part(encode_png(image)) for image in prompt.images)]
    parts += [audio_part(encode_wav(sound)) for sound in prompt.sounds]
    return await client.run(
        chat=user(*parts, prompt.text),
        sampling={
            "thinker": {"temperature": 0.0, "max_tokens": settings.thinker_tokens},
            "talker": {"temperature": 0.0, "repetition_penalty": 1.0, "max_tokens": settings.talker_tokens},
            "token2wav": {"num_inference_steps": settings.steps, "guidance_scale": settings.guidance},
        },
        seed=settings.seed,
        voice=settings.voice,
        encoding="pcm_f32le",
        include_token_ids=True,
        include_codec_tokens=True,
        timeout=120,
    )


def check(result: Any, expected: Reference) -> None:
    assert result.prompt_token_ids["thinker"] == expected.prompt_token_ids
    assert result.token_ids["thinker"] == expected.thinker_token_ids
    assert result.text == expected.text
    assert result.token_ids["talker"] == expected.codec_token_ids
    assert (result.sample_rate_hz, result.channels) == (24_000, 1)
    sound = torch.from_numpy(np.frombuffer(result.audio, "<f4").copy())
    torch.testing.assert_close(sound, expected.waveform, atol=SOUND_TOLERANCE, rtol=0)


async def check_each_alone_and_all_at_once(endpoint: str, checkpoint: Path) -> None:
    reference = load_reference(checkpoint)
    expected = {name: reference.run(prompt, settings) for name, (prompt, settings) in CASES.items()}
    async with AsyncOmniClient(endpoint) as client:
        for name, (prompt, settings) in CASES.items():
            check(await generate(client, prompt, settings), expected[name])
        together = await asyncio.gather(*(generate(client, *case) for case in CASES.values()))
    for name, result in zip(CASES, together, strict=True):
        check(result, expected[name])


async def test_seed_0_small(tiny_pipeline: RunningPipeline, tiny_checkpoint: Path) -> None:
    await check_each_alone_and_all_at_once(tiny_pipeline.endpoint, tiny_checkpoint)


@pytest.mark.full  # another pipeline; tests/engine holds the same model against transformers in one process
async def test_seed_1_grouped_query_attention(make_tiny_checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    checkpoint = make_tiny_checkpoint(1, "gqa")
    with run_pipeline(SAMPLES / "tiny-omni-full.yaml", checkpoint, tmp_path) as running:
        await check_each_alone_and_all_at_once(running.endpoint, checkpoint)
