"""Runs a prompt through the three stages of Qwen3-Omni, with Full or streamed edges, and compares with transformers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any

import torch

from omni_stage.models.component import EdgeStream, UserPrompt
from support.engines.omni_stages import AUDIO_TOLERANCE, Collected, OmniStages, receive
from support.engines.streams import stage_request
from support.models.reference import ReferencePrompt
from support.models.reference_qwen3 import Qwen3Reference, Qwen3Settings


async def run_chain(stages: OmniStages, prompt: ReferencePrompt, settings: Qwen3Settings) -> dict[str, Collected]:
    """Runs a prompt through all three stages, one after the other. Returns each stage's output."""
    greedy: dict[str, Any] = {"temperature": 0.0, "repetition_penalty": 1.0}
    thinker = await stages.ask("thinker", prompt.to_user_prompt(), **greedy, max_tokens=settings.thinker_tokens)
    talker = await stages.ask("talker", thinker.tensors, settings.voice, **talking(settings))
    return {"thinker": thinker, "talker": talker, "code2wav": await stages.ask("code2wav", talker.tensors)}


async def run_streamed(stages: OmniStages, prompt: ReferencePrompt, settings: Qwen3Settings) -> dict[str, Collected]:
    """Does the same as run_chain with both edges streamed, so that the stages run concurrently."""
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
                    below.put(receive(step), step.complete_tensors)
        if below is not None:
            below.end()
        return collected

    names = ("thinker", "talker", "code2wav")
    sources: tuple[UserPrompt | EdgeStream, ...] = (prompt.to_user_prompt(), edges["thinker"], edges["talker"])
    return dict(zip(names, await asyncio.gather(*map(run, names, sources)), strict=True))


def talking(settings: Qwen3Settings) -> dict[str, Any]:
    """Returns greedy sampling parameters for the talker."""
    return {
        "temperature": 0.0,
        "repetition_penalty": settings.repetition_penalty,
        "min_tokens": settings.min_frames,
        "max_tokens": settings.frames,
    }


def check_parity(ours: Mapping[str, Collected], reference: Qwen3Reference) -> None:
    """Compares with the reference: text and all codes exactly, audio within the tolerance."""
    thinker, talker, code2wav = ours["thinker"], ours["talker"], ours["code2wav"]
    assert thinker.prompt_token_ids == reference.prompt_token_ids
    assert thinker.token_ids == reference.thinker_token_ids
    assert thinker.text == reference.text
    assert talker.tensors["codes"].tolist() == reference.codes.tolist(), "every codebook of every frame"
    assert code2wav.audio.shape == reference.waveform.shape
    torch.testing.assert_close(code2wav.audio, reference.waveform, atol=AUDIO_TOLERANCE, rtol=0)
    assert reference.waveform.abs().max() > 0.05, (
        "the reference audio is nearly silent, so the comparison proves nothing"
    )
