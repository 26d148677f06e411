"""Our three stages against transformers' own Qwen3-Omni, on tiny checkpoints of two seeds and two shapes.

Text and the codes of every codebook must be equal; sound within 1e-5.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from omni_stage.models.component import FinishReason, UserPrompt
from omni_stage.models.edge_stream import EdgeStream
from support.media import make_image, make_sound
from support.omni_stages import Collected, OmniStages, run_omni_stages
from support.reference import ReferencePrompt
from support.reference_qwen3 import Qwen3Reference, Qwen3Settings, load_qwen3_reference
from support.streams import stage_request

pytestmark = pytest.mark.engine

CHECKPOINTS = [
    pytest.param(0, "small", id="small-seed0"),
    pytest.param(1, "small", id="small-seed1", marks=pytest.mark.full),
    pytest.param(0, "wide", id="wide-seed0", marks=pytest.mark.full),
    pytest.param(1, "wide", id="wide-seed1", marks=pytest.mark.full),
]
SENTENCE = "The road goes through the hills, past the mill and the old stone bridge, to the town. "
PROMPTS = {
    "text": ReferencePrompt("Tell me what the weather is like."),
    "system": ReferencePrompt("Tell me what the weather is like.", system="Be brief."),
    "long": ReferencePrompt(2 * SENTENCE),
    "sound": ReferencePrompt("What do you hear?", sounds=[make_sound(0)]),
    "image": ReferencePrompt("What do you see?", images=[make_image(0)]),
    "image and sound": ReferencePrompt(
        "Read the sentence slowly.", images=[make_image(1, 140, 56)], sounds=[make_sound(1, 0.7)]
    ),
}
SETTINGS = Qwen3Settings()
SOUND_TOLERANCE = 1e-5


async def run_chain(stages: OmniStages, prompt: ReferencePrompt, settings: Qwen3Settings) -> dict[str, Collected]:
    """One prompt through all three stages, each complete before the next."""
    greedy = {"temperature": 0.0, "repetition_penalty": 1.0}
    thinker = await stages.ask("thinker", prompt.to_user_prompt(), **greedy, max_tokens=settings.thinker_tokens)
    talker = await stages.ask("talker", thinker.tensors, settings.voice, **talking(settings))
    return {"thinker": thinker, "talker": talker, "code2wav": await stages.ask("code2wav", talker.tensors)}


async def run_streamed(stages: OmniStages, prompt: ReferencePrompt, settings: Qwen3Settings) -> dict[str, Collected]:
    """The same with both edges streamed: the stages run side by side."""
    edges = {"thinker": EdgeStream(), "talker": EdgeStream()}
    sampling = {
        "thinker": {"temperature": 0.0, "repetition_penalty": 1.0, "max_tokens": settings.thinker_tokens},
        "talker": talking(settings),
        "code2wav": {},
    }

    async def run(stage: str, source: UserPrompt | EdgeStream) -> Collected:
        engine, collected, below = stages.engines[stage], Collected(), edges.get(stage)
        voice = settings.voice if stage == "talker" else ""
        async with aclosing(engine.generate(stage_request(engine, source, voice, **sampling[stage]))) as steps:
            async for step in steps:
                collected.add(step)
                if below is not None:
                    below.put(step.tensors, step.complete_tensors)
        if below is not None:
            below.end()
        return collected

    names = ("thinker", "talker", "code2wav")
    sources = (prompt.to_user_prompt(), edges["thinker"], edges["talker"])
    return dict(zip(names, await asyncio.gather(*map(run, names, sources)), strict=True))


def talking(settings: Qwen3Settings) -> dict[str, Any]:
    return {
        "temperature": 0.0,
        "repetition_penalty": settings.repetition_penalty,
        "max_tokens": settings.frames,
    }


def check(ours: Mapping[str, Collected], reference: Qwen3Reference) -> None:
    thinker, talker, code2wav = ours["thinker"], ours["talker"], ours["code2wav"]
    assert thinker.prompt_token_ids == reference.prompt_token_ids
    assert thinker.token_ids == reference.thinker_token_ids
    assert thinker.text == reference.text
    assert talker.tensors["codes"].tolist() == reference.codes.tolist(), "every codebook of every frame"
    assert code2wav.audio.shape == reference.waveform.shape
    torch.testing.assert_close(code2wav.audio, reference.waveform, atol=SOUND_TOLERANCE, rtol=0)
    assert reference.waveform.abs().max() > 0.05, "a sound that is nearly silent proves nothing"


@pytest.mark.parametrize(("seed", "shape"), CHECKPOINTS)
async def test_every_prompt_kind_alone_together_and_streamed(
    make_tiny_checkpoint: Callable[..., Path], seed: int, shape: str
) -> None:
    """Each kind of prompt by itself, streamed; then all at once, whole and streamed, in shared batches."""
    checkpoint = make_tiny_checkpoint(seed, shape, "qwen3_omni")
    model = load_qwen3_reference(checkpoint)
    references = {name: model.run(prompt, SETTINGS) for name, prompt in PROMPTS.items()}
    async with run_omni_stages(checkpoint, family="qwen3_omni") as stages:
        check(await run_chain(stages, PROMPTS["image and sound"], SETTINGS), references["image and sound"])
        for name in ("text", "sound"):
            check(await run_streamed(stages, PROMPTS[name], SETTINGS), references[name])
        together = await asyncio.gather(
            *(run_chain(stages, prompt, SETTINGS) for prompt in PROMPTS.values()),
            *(run_streamed(stages, prompt, SETTINGS) for prompt in PROMPTS.values()),
        )
        for name, ours in zip([*PROMPTS, *PROMPTS], together, strict=True):
            check(ours, references[name])
        await check_voices_and_penalty(stages, model)
        await check_bytes_on_the_edge(stages)


async def check_voices_and_penalty(stages: OmniStages, model: Any) -> None:
    """A repetition penalty over the talker's own codes alone, and another voice; two voices at once."""
    settings = replace(SETTINGS, repetition_penalty=1.3, frames=16)
    other = replace(settings, voice="Aiden")
    prompt = PROMPTS["text"]
    ours = await asyncio.gather(*(run_streamed(stages, prompt, each) for each in (settings, other)))
    expected = [model.run(prompt, each) for each in (settings, other)]
    assert expected[0].codes.tolist() != expected[1].codes.tolist()
    for mine, theirs in zip(ours, expected, strict=True):
        check(mine, theirs)


async def check_bytes_on_the_edge(stages: OmniStages) -> None:
    """Of a text prompt: ids, and no rows. At published widths a row has 4,096 bytes, an id 8: 0.2 per cent."""
    thinker = await stages.ask("thinker", PROMPTS["long"].to_user_prompt(), temperature=0.0, max_tokens=4)
    assert thinker.tensors.keys() == {"token_ids", "prompt_tokens"}
    sent = sum(tensor.nbytes for tensor in thinker.tensors.values())
    assert sent <= 0.05 * thinker.tensors["token_ids"].shape[0] * 2048 * 2


@pytest.mark.full
async def test_prompts_in_chunks(make_tiny_checkpoint: Callable[..., Path]) -> None:
    """A budget of 32 tokens a step cuts prompts; eight at once."""
    checkpoint = make_tiny_checkpoint(0, "small", "qwen3_omni")
    model, settings = load_qwen3_reference(checkpoint), Qwen3Settings(thinker_tokens=12, frames=120)
    names = ["long", "text", "image and sound", "sound"]
    expected = [model.run(PROMPTS[name], settings) for name in names]
    assert len(expected[0].prompt_token_ids) > 32
    limits = {"max_num_batched_tokens": 32, "max_model_len": 256}
    async with (
        run_omni_stages(checkpoint, "talker", "code2wav", family="qwen3_omni", **limits) as below,
        run_omni_stages(checkpoint, "thinker", family="qwen3_omni", max_num_batched_tokens=64) as above,
    ):
        stages = OmniStages({**above.engines, **below.engines})
        ours = await asyncio.gather(*(run_chain(stages, PROMPTS[name], settings) for name in (*names, *names)))
    for mine, theirs in zip(ours, [*expected, *expected], strict=True):
        check(mine, theirs)


async def test_a_reply_without_text_is_no_speech(make_tiny_checkpoint: Callable[..., Path]) -> None:
    checkpoint = make_tiny_checkpoint(0, "small", "qwen3_omni")
    async with run_omni_stages(checkpoint, "talker", family="qwen3_omni") as stages:
        facts: Any = stages.engines["talker"].component
        text = facts._checkpoint.text
        prompt = [text.message_start, text.user, 1, text.message_start, text.assistant, 1]
        tensors = {"token_ids": torch.tensor(prompt), "prompt_tokens": torch.tensor([len(prompt)])}
        silent = await stages.ask("talker", tensors, "Ethan")
    assert silent.finish_reason is FinishReason.EMPTY_INPUT
