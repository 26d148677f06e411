"""Turns of a conversation, with audio: the thinker reuses earlier turns, and its tensors are those of a thinker that
computes everything. For comparison, each turn is also asked with a salt of its own, which shares nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

from omni_proto.stage_config import SamplingDefaults
from omni_stage.engine.vllm_engine import VllmStageEngine
from omni_stage.models.component import AudioPart, ChatMessage, StageRequest, TextPart, UserPrompt
from support.engines.omni_stages import Collected, stage_config
from support.engines.one_stage import running
from support.media.samples import make_audio

pytestmark = pytest.mark.engine

GREEDY = SamplingDefaults(temperature=0.0, repetition_penalty=1.0, max_tokens=12, ignore_eos=True)
BLOCK = 32
LIMITS = {"block_size": BLOCK, "max_num_batched_tokens": 128, "max_model_len": 1024, "kv_cache_memory_mib": 16}
TURNS = 4
TOLERANCE = 1e-5
_ids = count()


def user_says(speaker: int, turn: int) -> ChatMessage:
    audio = AudioPart(make_audio(10 * speaker + turn, 2.0), 16_000)
    return ChatMessage("user", [audio, TextPart(f"This is question {turn} of speaker {speaker}.")])


async def ask(engine: VllmStageEngine, messages: list[ChatMessage], salt: str = "", outputs: int | None = None) -> Any:
    """Returns what the thinker answers. Aborts the request after `outputs` steps."""
    collected = Collected()
    request = StageRequest(
        request_id=f"turn-{next(_ids)}",
        source=UserPrompt(messages=messages),
        sampling=GREEDY,
        want_tensors=True,
        cache_salt=salt,
    )
    async with aclosing(engine.generate(request)) as steps:
        async for step in steps:
            collected.add(step)
            outputs = None if outputs is None else outputs - 1
            if outputs == 0:
                break
    return collected


def watch_computed(engine: VllmStageEngine) -> list[int]:
    """Returns a list that gets the number of tokens of each step from now on."""
    core: Any = engine._core
    scheduler = core.llm.engine_core.engine_core.scheduler
    schedule, computed = scheduler.schedule, []

    def watched(*args: Any, **kwargs: Any) -> Any:
        output = schedule(*args, **kwargs)
        computed.append(output.total_num_scheduled_tokens)
        return output

    scheduler.schedule = watched
    return computed


def check_equal(mine: Collected, whole: Collected) -> None:
    assert mine.token_ids == whole.token_ids
    assert mine.prompt_token_ids == whole.prompt_token_ids
    assert mine.tensors.keys() == whole.tensors.keys()
    for name, tensor in whole.tensors.items():
        torch.testing.assert_close(mine.tensors[name], tensor, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("family", ["qwen2_5_omni", "qwen3_omni"])
async def test_later_turns_compute_what_is_new(make_tiny_checkpoint: Callable[..., Path], family: str) -> None:
    checkpoint = make_tiny_checkpoint(0, "small", family)
    async with running(stage_config("thinker", checkpoint, family=family, **LIMITS)) as engine:
        assert isinstance(engine, VllmStageEngine)
        computed = watch_computed(engine)
        talks: list[list[ChatMessage]] = [[] for _ in range(3)]
        for turn in range(TURNS):
            for speaker, talk in enumerate(talks):
                talk.append(user_says(speaker, turn))
            if turn == 1:
                # A caller that hangs up: its rows may be reused, and nothing else of it stays.
                await ask(engine, talks[0], outputs=1)
            # Three conversations share the steps; their prompts take several steps each.
            computed.clear()
            reused = engine.reused_rows[0]
            answers = await asyncio.gather(*(ask(engine, talk) for talk in talks))
            new = sum(computed)
            wholes = [await ask(engine, talk, salt=f"{turn}-{number}") for number, talk in enumerate(talks)]
            for answer, whole in zip(answers, wholes, strict=True):
                check_equal(answer, whole)
            for talk, answer in zip(talks, answers, strict=True):
                talk.append(ChatMessage("assistant", [TextPart(answer.text)]))
            if turn:
                prompts = sum(len(answer.prompt_token_ids) for answer in answers)
                assert engine.reused_rows[0] > reused
                assert new < prompts / 2 + 3 * (2 * BLOCK + 12) if turn > 1 else new < prompts
