"""Turns of a conversation, with audio: thinker and talker reuse earlier turns, and their tensors are those of stages
that compute everything. For comparison, each turn is also asked with a salt of its own, which shares nothing."""

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
from omni_stage.models.component import (
    AudioPart,
    ChatMessage,
    EdgeInput,
    EdgeStream,
    StageRequest,
    TextPart,
    UserPrompt,
)
from omni_stage.models.registry import resolve, tiny_checkpoints
from support.engines.omni_stages import Collected, stage_config
from support.engines.one_stage import running
from support.engines.streams import collect
from support.engines.tiny_text import watch_computed
from support.media.samples import make_audio

pytestmark = pytest.mark.engine

GREEDY = SamplingDefaults(temperature=0.0, repetition_penalty=1.0, max_tokens=12, ignore_eos=True)
BLOCK = 32
LIMITS = {"block_size": BLOCK, "max_num_batched_tokens": 128, "max_model_len": 1024, "kv_cache_memory_mib": 16}
TURNS = 4
TOLERANCE = 1e-5
_ids = count()


def user_says(speaker: int, turn: int) -> ChatMessage:
    key = f"{speaker}-{turn}" if turn % 2 else ""
    audio = AudioPart(make_audio(10 * speaker + turn, 2.0), 16_000, key=key)
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
        computed = watch_computed(engine._core.llm.engine_core.engine_core.scheduler)  # type: ignore[attr-defined]
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


@pytest.mark.parametrize(
    ("family", "dtype", "step"),
    [
        ("qwen3_omni", "float32", 96),
        # In bfloat16, sums depend on the number of tokens in a step: it is the same here with and without a cache.
        ("qwen2_5_omni", "bfloat16", BLOCK),
        pytest.param("qwen2_5_omni", "float32", 96, marks=pytest.mark.full),
        pytest.param("qwen3_omni", "bfloat16", BLOCK, marks=pytest.mark.full),
    ],
)
async def test_later_turns_of_a_talker_compute_what_is_new(tmp_path: Path, family: str, dtype: str, step: int) -> None:
    write: Any = resolve(tiny_checkpoints()[family].writer, what="the writer")
    checkpoint = write(tmp_path, dtype=dtype)
    limits = {**LIMITS, "max_num_batched_tokens": step}
    talk: list[ChatMessage] = []
    async with (
        running(stage_config("thinker", checkpoint, family=family, **LIMITS)) as thinker,
        running(stage_config("talker", checkpoint, family=family, **limits)) as talker,
    ):
        assert isinstance(thinker, VllmStageEngine)
        core: Any = talker
        computed = watch_computed(core._core.llm.engine_core.engine_core.scheduler)
        for turn in range(TURNS):
            talk.append(user_says(0, turn))
            answer = await ask(thinker, talk)
            talk.append(ChatMessage("assistant", [TextPart(answer.text)]))
            stream = EdgeStream()
            stream.put(answer.tensors)
            stream.end()
            new = {}
            spoken = {}
            for name, source, salt in (
                ("as it arrives", stream, ""),
                ("again, whole", EdgeInput(answer.tensors), ""),
                ("alone", EdgeInput(answer.tensors), f"{turn}"),
            ):
                computed.clear()
                spoken[name] = await say(talker, source, turn, salt)
                new[name] = sum(computed)
            whole = spoken.pop("alone")
            for mine in spoken.values():
                assert mine.prompt_token_ids == whole.prompt_token_ids
                assert torch.equal(mine.tensors["codes"], whole.tensors["codes"])
            assert new["again, whole"] <= BLOCK + FRAMES < new["alone"]
            # The rest of a block in the thinker and in the talker is computed again, besides the turn and its frames.
            question = len(whole.prompt_token_ids) / (turn + 1)
            assert new["as it arrives"] <= question + 3 * BLOCK + FRAMES


@pytest.mark.full
async def test_the_twentieth_turn_computes_as_much_of_its_prompts_as_the_second(
    make_tiny_checkpoint: Callable[..., Path],
) -> None:
    family = "qwen3_omni"
    checkpoint = make_tiny_checkpoint(0, "small", family)
    limits = {**LIMITS, "max_model_len": 4096, "kv_cache_memory_mib": 64}
    talk: list[ChatMessage] = []
    computed: list[tuple[int, int]] = []
    async with (
        running(stage_config("thinker", checkpoint, 20, family=family, **limits)) as thinker,
        running(stage_config("talker", checkpoint, family=family, **limits)) as talker,
    ):
        for turn in range(20):
            talk.append(user_says(0, turn))
            answer = await ask(thinker, talk)
            talk.append(ChatMessage("assistant", [TextPart(answer.text)]))
            spoken = await say(talker, EdgeInput(answer.tensors), turn, "")
            computed.append((answer.computed_tokens, spoken.computed_tokens))
    for stage, new in enumerate(zip(*computed, strict=True)):
        # All of the first turn; then a turn, and what is left of a block in thinker and talker.
        assert max(new[4], new[19]) <= new[1] + 3 * BLOCK, (stage, new)
        assert max(new[4], new[19]) <= new[0] + 3 * BLOCK, (stage, new)


FRAMES = 16


async def say(talker: Any, source: EdgeInput | EdgeStream, seed: int, salt: str) -> Collected:
    sampling = SamplingDefaults(temperature=0.9, seed=seed, max_tokens=FRAMES, ignore_eos=True)
    request = StageRequest(f"say-{next(_ids)}", source, sampling, want_tensors=True, cache_salt=salt)
    return await collect(talker, request)
