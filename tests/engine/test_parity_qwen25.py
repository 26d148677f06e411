"""Our three stages against transformers' own Qwen2.5-Omni, on tiny checkpoints of two seeds and two shapes.

Tokens must be equal; rows within 1e-4; sound within 1e-5.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from support.media import make_image, make_sound
from support.omni_stages import Collected, OmniStages, run_omni_stages
from support.reference import Reference, ReferencePrompt, ReferenceSettings, load_reference

pytestmark = pytest.mark.engine

ROWS_TOLERANCE = 1e-4
SOUND_TOLERANCE = 1e-5
CHECKPOINTS = [(0, "small"), (1, "small"), (0, "gqa"), (1, "gqa")]

PROMPTS = {
    "text": ReferencePrompt("Tell me what the weather is like."),
    "sound": ReferencePrompt("What do you hear?", sounds=[make_sound(0)]),
    "image": ReferencePrompt("What do you see?", images=[make_image(0)]),
    "image and sound": ReferencePrompt(
        "Read the sentence slowly.", images=[make_image(1, 140, 56)], sounds=[make_sound(1, 0.7)]
    ),
}
SETTINGS = ReferenceSettings()


async def run_chain(stages: OmniStages, prompt: ReferencePrompt, settings: ReferenceSettings) -> dict[str, Collected]:
    """One prompt through all stages, greedy."""
    thinker = await stages.ask("thinker", prompt.to_user_prompt(), temperature=0.0, max_tokens=settings.thinker_tokens)
    talker = await stages.ask(
        "talker",
        thinker.tensors,
        voice=settings.voice,
        temperature=0.0,
        repetition_penalty=1.0,
        max_tokens=settings.talker_tokens,
    )
    token2wav = await stages.ask(
        "token2wav",
        talker.tensors,
        voice=settings.voice,
        seed=settings.seed,
        num_inference_steps=settings.steps,
        guidance_scale=settings.guidance,
    )
    return {"thinker": thinker, "talker": talker, "token2wav": token2wav}


def check_parity(ours: dict[str, Collected], reference: Reference) -> None:
    """Every stage's output against the reference."""
    thinker, talker, token2wav = ours["thinker"], ours["talker"], ours["token2wav"]
    assert thinker.prompt_token_ids == reference.prompt_token_ids
    assert thinker.token_ids == reference.thinker_token_ids
    assert thinker.text == reference.text
    assert thinker.tensors["token_ids"].tolist() == [*reference.prompt_token_ids, *reference.thinker_token_ids[:-1]]
    assert thinker.tensors["mrope_positions"].tolist() == reference.mrope_positions.tolist()
    torch.testing.assert_close(thinker.tensors["x"], reference.rows, atol=ROWS_TOLERANCE, rtol=0)
    assert talker.token_ids == reference.codec_token_ids
    assert talker.tensors["codes"].tolist() == reference.codes
    assert token2wav.audio.shape == reference.waveform.shape
    torch.testing.assert_close(token2wav.audio, reference.waveform, atol=SOUND_TOLERANCE, rtol=0)
    assert reference.waveform.abs().max() > 0.05, "a sound that is nearly silent proves nothing"


@pytest.mark.parametrize(("seed", "shape"), CHECKPOINTS, ids=[f"{shape}-seed{seed}" for seed, shape in CHECKPOINTS])
async def test_every_prompt_kind_alone_and_concurrently(
    make_tiny_checkpoint: Callable[..., Path], seed: int, shape: str
) -> None:
    """Each kind of prompt by itself, then all four at once in shared batches."""
    checkpoint = make_tiny_checkpoint(seed, shape)
    references = {name: load_reference(checkpoint).run(prompt, SETTINGS) for name, prompt in PROMPTS.items()}
    async with run_omni_stages(checkpoint) as stages:
        for name, prompt in PROMPTS.items():
            check_parity(await run_chain(stages, prompt, SETTINGS), references[name])
        together = await asyncio.gather(*(run_chain(stages, prompt, SETTINGS) for prompt in PROMPTS.values()))
    for name, ours in zip(PROMPTS, together, strict=True):
        check_parity(ours, references[name])
