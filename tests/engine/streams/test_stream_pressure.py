"""Streamed input with little KV cache: a preempted upstream, more sessions than fit, prompts that take many steps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from omni_stage.exchange import GivenReply
from omni_stage.models.component import EdgeStream, UserPrompt
from support.engines.omni_stages import run_omni_stages
from support.engines.streams import HEAD, collect, count_preemptions, run_live, stage_request, table_sizes, until_empty
from support.models.reference import PLAIN_SYSTEM_PROMPT, ReferencePrompt
from support.processes.polling import PATIENCE_S, until

pytestmark = pytest.mark.engine

GREEDY = {"temperature": 0.0, "repetition_penalty": 1.0}
SEEDED = {"temperature": 1.1, "seed": 3}


@pytest.fixture(scope="module")
def checkpoint(make_tiny_checkpoint: Callable[..., Path]) -> Path:
    """The tiny checkpoint of shape "gqa" and seed 0."""
    return make_tiny_checkpoint(0, "gqa")


async def test_an_upstream_that_is_preempted(checkpoint: Path) -> None:
    """The thinker's KV cache holds about five of six replies. Each row is still sent once and in order."""
    prompts = [
        ReferencePrompt(text, system=PLAIN_SYSTEM_PROMPT).to_user_prompt()
        for text in ("Hello", "Hi", "One", "Two", "Three words here", "?")
    ]
    thinks = [{**SEEDED, "seed": index, "max_tokens": 100, "ignore_eos": True} for index in range(len(prompts))]
    talks = {**SEEDED, "max_tokens": 40, "ignore_eos": True}
    async with (
        run_omni_stages(checkpoint, "thinker", max_model_len=256, kv_cache_memory_mib=1, block_size=32) as small,
        run_omni_stages(checkpoint, "thinker", "talker", max_model_len=256) as roomy,
    ):
        thinker, talker = small.engines["thinker"], roomy.engines["talker"]

        async def ask_whole(prompt: UserPrompt, sampling: dict[str, Any]) -> tuple[list[int], list[int]]:
            wrote = await roomy.ask("thinker", prompt, **sampling)
            return wrote.token_ids, (await roomy.ask("talker", wrote.tensors, **talks)).token_ids

        jobs = list(zip(prompts, thinks, strict=True))
        expected = await asyncio.gather(*(ask_whole(*job) for job in jobs))
        preempted = count_preemptions(thinker)
        together = await asyncio.gather(*(run_live(thinker, talker, *job, talks) for job in jobs))
        assert preempted, "otherwise this test shows nothing"
        # Given replies (prefilled, and preempted too) run beside sampled ones. The talker says the same for both.
        given = [
            replace(prompt, reply=GivenReply(token_ids=ids[:-1]))
            for prompt, (ids, _) in zip(prompts, expected, strict=True)
        ]
        spoken = await asyncio.gather(
            *(run_live(thinker, talker, prompt, {}, talks) for prompt in given),
            *(run_live(thinker, talker, *job, talks) for job in jobs),
        )
        assert [spoke.token_ids for _, spoke, _ in spoken] == 2 * [codes for _, codes in expected]
        assert [(wrote.token_ids, spoke.token_ids) for wrote, spoke, _ in together] == expected
        for engine in (thinker, talker):
            assert await until_empty(engine) == {}


async def test_more_sessions_than_kv_end(checkpoint: Path) -> None:
    """More sessions wait for input than the KV cache can hold at full length: all finish, and none is preempted.

    Shorter sessions reserve less, so more of them are inside the engine at the same time.
    """
    async with (
        run_omni_stages(checkpoint, "talker", max_model_len=160, kv_cache_memory_mib=1, block_size=32) as stages,
        run_omni_stages(checkpoint, "thinker", max_model_len=160) as upstream,
    ):
        talker = stages.engines["talker"]
        thought = await upstream.ask(
            "thinker",
            ReferencePrompt("Hello", system=PLAIN_SYSTEM_PROMPT).to_user_prompt(),
            **GREEDY,
            max_tokens=40,
            ignore_eos=True,
        )
        prompt, rows = len(thought.tensors["mrope_positions"]), thought.tensors["x"]
        room = talker._core.session_room
        preempted = count_preemptions(talker)

        async def crowd(longest: list[int], inside: int) -> list[list[int]]:
            """Runs one session for each value of max_tokens in `longest`. Returns the tokens of each session.

            While all sessions are half-fed, `inside` of them must be in the engine.
            """
            streams = [EdgeStream() for _ in longest]
            requests = [
                stage_request(talker, stream, **GREEDY, max_tokens=most, ignore_eos=True)
                for stream, most in zip(streams, longest, strict=True)
            ]
            tasks = []
            for number, (request, stream) in enumerate(zip(requests, streams, strict=True), 1):
                tasks.append(asyncio.create_task(collect(talker, request)))
                stream.put({**{name: thought.tensors[name] for name in HEAD}, "x": rows[: prompt + 5]}, HEAD)
                # One after another: the first rows are read in threads, which end in any order.
                await until(lambda: table_sizes(talker)["scheduler"] + talker.waiting_requests == number)  # noqa: B023
            # The sessions inside the engine have used up their rows; the others wait outside the engine.
            await until(lambda: table_sizes(talker)["waiting for input"] == inside)
            assert table_sizes(talker)["scheduler"] == inside
            for stream in streams:
                stream.put({"x": rows[prompt + 5 :]})
                stream.end()
            return [item.token_ids for item in await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE_S)]

        full = (await stages.ask("talker", thought.tensors, **GREEDY, max_tokens=100_000, ignore_eos=True)).token_ids
        assert len(full) + prompt + 2 == 160, "it reaches the longest sequence"
        assert room.blocks is not None
        most = room.blocks // room.blocks_for(160)
        assert 1 <= most < 7, "otherwise this test shows nothing"
        assert await crowd([100_000] * 7, most) == [full] * 7
        # Short sessions reserve only the blocks that they can reach. Long ones wait, and nothing overtakes them.
        short = 32 * room.blocks_for(prompt + 2 + 20) - prompt - 2
        together = min(room.sessions, room.blocks // room.blocks_for(prompt + 2 + short))
        assert together > most, "otherwise this test shows nothing"
        assert await crowd([short] * together, together) == [full[:short]] * together
        mixed = [100_000, short, 100_000, short, short, 100_000, 100_000, short, 100_000]
        inside, held = 0, 0
        while (held := held + room.blocks_for(min(160, prompt + 2 + mixed[inside]))) <= room.blocks:
            inside += 1
        assert await crowd(mixed, inside) == [full[:item] for item in mixed]
        assert not preempted
        assert await until_empty(talker) == {}


async def test_seeds_hold_for_prompts_of_several_steps(checkpoint: Path) -> None:
    """A seeded request gives the same tokens when its prompt takes several steps.

    Plain vLLM 0.32 kills the engine here on a CPU: it rewinds a generator that cannot be rewound.
    """
    async with run_omni_stages(checkpoint, "thinker", "talker", max_model_len=512, max_num_batched_tokens=512) as wide:
        prompt = ReferencePrompt("word " * 60, system=PLAIN_SYSTEM_PROMPT).to_user_prompt()
        thinker_sampling = {**SEEDED, "max_tokens": 20, "ignore_eos": True}
        wrote = await wide.ask("thinker", prompt, **thinker_sampling)
        sampling = {**SEEDED, "max_tokens": 30, "ignore_eos": True}
        spoken = await wide.ask("talker", wrote.tensors, **sampling)
    async with run_omni_stages(checkpoint, "thinker", "talker", max_model_len=512, max_num_batched_tokens=48) as narrow:
        engines = narrow.engines["thinker"], narrow.engines["talker"]
        live_wrote, live_spoken, _ = await run_live(*engines, prompt, thinker_sampling, sampling)
        assert live_wrote.token_ids == wrote.token_ids
        assert live_spoken.token_ids == spoken.token_ids
        assert (await narrow.ask("talker", wrote.tensors, **sampling)).token_ids == spoken.token_ids
        # A prompt and a given reply in several steps.
        given = replace(prompt, reply=GivenReply(token_ids=wrote.token_ids[:-1]))
        read, spoke, _ = await run_live(*engines, given, {}, sampling)
        assert read.prompt_token_ids == wrote.prompt_token_ids
        assert wrote.text.startswith(read.text)
        assert spoke.token_ids == spoken.token_ids
        torch.testing.assert_close(read.tensors["x"], wrote.tensors["x"], atol=1e-4, rtol=1e-4)
        assert torch.equal(read.tensors["mrope_positions"], wrote.tensors["mrope_positions"])
        assert torch.equal(read.tensors["mrope_delta"], wrote.tensors["mrope_delta"])
        assert torch.equal(read.tensors["token_ids"], wrote.tensors["token_ids"])
