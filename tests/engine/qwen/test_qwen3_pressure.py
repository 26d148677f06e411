"""Qwen3-Omni with little KV cache: requests that are preempted and recomputed, and prompts that take several steps.

The talker's input at a position is built from all codes of the previous frame. Only the model has those codes: vLLM
keeps just the first code of each frame, and recomputing from it would change every later code.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from omni_stage.models.qwen3_omni.checkpoint import read_checkpoint
from omni_stage.models.qwen3_omni.talker.predictor import GraphedPredictor
from omni_stage.models.qwen3_omni.tiny import write_tiny_checkpoint
from omni_stage.models.qwen3_omni.tiny.shapes import TinyShape
from support.engines.async_on_cpu import stage_scheduling
from support.engines.omni_stages import OmniStages, run_omni_stages
from support.engines.streams import count_preemptions, until_empty
from support.media.samples import make_audio, make_image
from support.models.graph_recorder import GraphRecorder
from support.models.qwen3_chain import check_parity, run_chain
from support.models.reference import ReferencePrompt
from support.models.reference_qwen3 import Qwen3Settings, load_qwen3_reference

pytestmark = pytest.mark.engine

DEEP = TinyShape(
    thinker_layers=8, thinker_kv_heads=4, accept_hidden_layer=5, talker_layers=8, talker_kv_heads=4, groups=8
)
"""8 KiB of keys and values per token. 2 MiB are 8 blocks of 32 tokens; vLLM keeps one of them, so 224 tokens fit."""
TIGHT = {"kv_cache_memory_mib": 2, "block_size": 32, "max_model_len": 160}
FRAMES = 64
PROMPTS = {
    "text": ReferencePrompt("Tell me what the weather is like."),
    "system": ReferencePrompt("What is it?", system="Be brief."),
    "image": ReferencePrompt("What do you see?", images=[make_image(0)]),
    "image and sound": ReferencePrompt("Read it.", images=[make_image(1, 140, 56)], audios=[make_audio(1, 0.7)]),
}
SENTENCE = "The road goes through the hills, past the mill and the old stone bridge, to the town. "


async def test_a_preempted_talker_says_the_same(tmp_path: Path) -> None:
    """Seven seeded requests give the same codes one by one as concurrently, when some are preempted.

    They are sampled with the published settings.
    """
    checkpoint = write_tiny_checkpoint(tmp_path, shape=DEEP, dtype="float32")
    async with run_omni_stages(checkpoint, "talker", family="qwen3_omni", **TIGHT) as stages:
        talker: Any = stages.engines["talker"]
        preempted = count_preemptions(talker)
        text = read_checkpoint(checkpoint).text
        prompt = [text.message_start, text.user, 1, 2, text.message_start, text.assistant, 3]
        written = [
            {"token_ids": torch.tensor([*prompt, *range(4, 8 + seed)]), "prompt_tokens": torch.tensor([len(prompt)])}
            for seed in range(7)
        ]
        alone = [await speak(stages, tensors, seed) for seed, tensors in enumerate(written)]
        assert not preempted
        together = await asyncio.gather(*(speak(stages, tensors, seed) for seed, tensors in enumerate(written)))
        assert preempted, "otherwise this test shows nothing"
        assert together == alone
        assert all(len(codes) == FRAMES and len(set(map(tuple, codes))) > FRAMES // 2 for codes in alone)
        assert await until_empty(talker) == {}


async def test_the_predictors_graphs_on_a_late_device(make_tiny_checkpoint: Callable[..., Path]) -> None:
    """Two talkers of one process, scheduled asynchronously, give the codes that they give without graphs.

    A replay overwrites what the last one returned, and the device is as late as a GPU may be (async_on_cpu)."""
    checkpoint = make_tiny_checkpoint(0, "small", "qwen3_omni")
    text = read_checkpoint(checkpoint).text
    prompt = [text.message_start, text.user, 1, 2, text.message_start, text.assistant, 3]
    written = [
        {"token_ids": torch.tensor([*prompt, *range(4, 8 + seed)]), "prompt_tokens": torch.tensor([len(prompt)])}
        for seed in range(3)
    ]
    with stage_scheduling("asynchronous"):
        async with (
            run_omni_stages(checkpoint, "talker", family="qwen3_omni") as one,
            run_omni_stages(checkpoint, "talker", family="qwen3_omni") as other,
        ):
            expected = [await speak(one, tensors, seed) for seed, tensors in enumerate(written)]
            recorders = [record_predictor(stages.engines["talker"]) for stages in (one, other)]
            warm = [recorder.replays for recorder in recorders]
            both = [speak(stages, tensors, seed) for stages in (one, other) for seed, tensors in enumerate(written)]
            assert await asyncio.gather(*both) == expected * 2
            assert all(recorder.replays >= before + FRAMES for recorder, before in zip(recorders, warm, strict=True))


def record_predictor(engine: Any) -> GraphRecorder:
    """Gives an idle talker's code predictor graphs for up to four frames a step. Returns what they count."""
    core = engine._core.llm.engine_core.engine_core
    model = core.model_executor.driver_worker.worker.model_runner.get_model()
    recorder = GraphRecorder()
    model._graphed = GraphedPredictor(model._predictor, recorder, 4)
    with torch.inference_mode():
        model._graphed.warm_up(model._rows, model.config.hidden_size)
    return recorder


@pytest.mark.full  # like the first test, but also compared with transformers
async def test_preempted_stages_equal_transformers(tmp_path: Path) -> None:
    """Eight concurrent prompts, half of them with media, give the text and every code that transformers gives."""
    checkpoint = write_tiny_checkpoint(tmp_path, shape=DEEP, dtype="float32")
    settings = Qwen3Settings(thinker_tokens=24, frames=FRAMES, min_frames=FRAMES)
    model = load_qwen3_reference(checkpoint)
    expected = {name: model.run(prompt, settings) for name, prompt in PROMPTS.items()}
    async with (
        run_omni_stages(checkpoint, "thinker", "talker", family="qwen3_omni", **TIGHT) as tight,
        run_omni_stages(checkpoint, "code2wav", family="qwen3_omni") as below,
    ):
        stages = OmniStages({**tight.engines, **below.engines})
        preempted = [count_preemptions(engine) for engine in tight.engines.values()]
        twice = [*PROMPTS, *PROMPTS]
        ours = await asyncio.gather(*(run_chain(stages, PROMPTS[name], settings) for name in twice))
        for name, mine in zip(twice, ours, strict=True):
            check_parity(mine, expected[name])
        assert all(preempted), "otherwise this test shows nothing"
        for engine in tight.engines.values():
            assert await until_empty(engine) == {}


async def speak(stages: OmniStages, tensors: Mapping[str, torch.Tensor], seed: int) -> list[list[int]]:
    """Returns FRAMES frames of codes, sampled with the published settings and `seed`. The end token is ignored."""
    spoken = await stages.ask("talker", tensors, "Ethan", seed=seed, max_tokens=FRAMES, ignore_eos=True)
    codes: list[list[int]] = spoken.tensors["codes"].tolist()
    return codes


@pytest.mark.full  # tests/engine/qwen/test_parity_qwen3.py has prompts of several kinds in shared batches
async def test_prompts_in_chunks(make_tiny_checkpoint: Callable[..., Path]) -> None:
    """Eight concurrent prompts give the answers of transformers, although the step's token budget splits prompts."""
    checkpoint = make_tiny_checkpoint(0, "small", "qwen3_omni")
    model, settings = load_qwen3_reference(checkpoint), Qwen3Settings(thinker_tokens=12, frames=120)
    prompts = {**PROMPTS, "text": replace(PROMPTS["text"], text=2 * SENTENCE)}
    expected = {name: model.run(prompt, settings) for name, prompt in prompts.items()}
    assert len(expected["text"].prompt_token_ids) > 32
    limits = {"max_num_batched_tokens": 32, "max_model_len": 256}
    async with (
        run_omni_stages(checkpoint, "talker", "code2wav", family="qwen3_omni", **limits) as below,
        run_omni_stages(checkpoint, "thinker", family="qwen3_omni", max_num_batched_tokens=64) as above,
    ):
        stages = OmniStages({**above.engines, **below.engines})
        twice = [*prompts, *prompts]
        ours = await asyncio.gather(*(run_chain(stages, prompts[name], settings) for name in twice))
    for name, mine in zip(twice, ours, strict=True):
        check_parity(mine, expected[name])
