"""code2wav on a real engine: streams of any pace and whole utterances share steps, and give transformers' audio.

A request that ends early leaves no state behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch
from transformers import Qwen3OmniMoeForConditionalGeneration

from omni_stage.errors import InvalidTensorError
from omni_stage.models.component import EdgeStream, FinishReason
from support.engines.omni_stages import Collected, OmniStages, run_omni_stages
from support.engines.streams import stage_request
from support.processes.polling import until

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

STAGE = "code2wav"
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def checkpoint(make_tiny_checkpoint: Callable[..., Path]) -> Path:
    return make_tiny_checkpoint(0, "small", "qwen3_omni")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stages(checkpoint: Path) -> AsyncIterator[OmniStages]:
    async with run_omni_stages(checkpoint, STAGE, family="qwen3_omni") as running:
        yield running


@pytest.fixture(scope="module")
def reference(checkpoint: Path) -> Any:
    return Qwen3OmniMoeForConditionalGeneration.from_pretrained(checkpoint, dtype=torch.float32).code2wav.eval()


def frames_of(count: int, seed: int = 0) -> torch.Tensor:
    """Returns random codes: int64 [frames, groups]."""
    return torch.randint(64, (count, 4), generator=torch.Generator().manual_seed(seed))


@torch.inference_mode()
def whole(reference: Any, codes: torch.Tensor) -> torch.Tensor:
    """Returns the audio that transformers computes from all codes in one forward."""
    waveform: torch.Tensor = reference(codes.T[None])[0, 0]
    return waveform


async def say(stages: OmniStages, codes: torch.Tensor, size: int, *, end_late: bool = True) -> tuple[Collected, int]:
    """Feeds the codes `size` frames at a time. Returns the audio, and in how many steps it came.

    Unless `end_late`, the stream ends together with the last frames.
    """
    engine, stream = stages.engines[STAGE], EdgeStream()
    collected, steps, heard = Collected(), 0, asyncio.Event()

    async def put() -> None:
        for begin in range(0, len(codes), size):
            stream.put({"codes": codes[begin : begin + size]})
            if begin + size < len(codes):
                await heard.wait()  # otherwise a busy machine may decode all in one step
            if begin + size < len(codes) or end_late:
                await asyncio.sleep(0.01)
        stream.end()

    feeding = asyncio.create_task(put())
    async with aclosing(engine.generate(stage_request(engine, stream))) as outputs:
        async for step in outputs:
            collected.add(step)
            if step.audio is not None:
                steps += 1
                heard.set()
    await feeding
    return collected, steps


def open_audios(stages: OmniStages) -> int:
    """Returns for how many requests the model holds state, read from the engine's model."""
    engine: Any = stages.engines[STAGE]
    llm = engine._core.llm
    return len(llm.engine_core.engine_core.model_executor.driver_worker.worker.model_runner.get_model().pool)


async def test_streams_and_whole_audio_at_once_each_equal_transformers(stages: OmniStages, reference: Any) -> None:
    paces = {1: 9, 4: 30, 25: 60, 200: 150}
    audios = {size: frames_of(count, size) for size, count in paces.items()}
    full = frames_of(70, 99)
    *streamed, at_once = await asyncio.gather(
        *(say(stages, codes, size) for size, codes in audios.items()), stages.ask(STAGE, {"codes": full})
    )
    for (size, codes), (collected, steps) in zip(audios.items(), streamed, strict=True):
        expected = whole(reference, codes)
        torch.testing.assert_close(collected.audio, expected, atol=TOLERANCE, rtol=0)
        assert collected.finish_reason is FinishReason.STOP
        assert steps > 1 or size > 100
    torch.testing.assert_close(at_once.audio, whole(reference, full), atol=TOLERANCE, rtol=0)
    await until(lambda: open_audios(stages) == 0)


async def test_one_frame_is_decoded_before_the_next_comes(stages: OmniStages, reference: Any) -> None:
    """Each frame's audio is returned before the next frame is sent: 1,365 samples, then 1,920 each."""
    engine, stream, codes = stages.engines[STAGE], EdgeStream(), frames_of(4)
    heard: list[torch.Tensor] = []
    stream.put({"codes": codes[:1]})
    async with aclosing(engine.generate(stage_request(engine, stream))) as outputs:
        async for step in outputs:
            if step.audio is not None:
                heard.append(step.audio)
                # The next frame is sent only now.
                following = codes[len(heard) : len(heard) + 1]
                stream.put({"codes": following}) if len(following) else stream.end()
    assert [audio.numel() for audio in heard] == [1365, 1920, 1920, 1920]
    torch.testing.assert_close(torch.cat(heard), whole(reference, codes), atol=TOLERANCE, rtol=0)


async def test_an_aborted_stream_leaves_nothing(stages: OmniStages) -> None:
    engine, stream = stages.engines[STAGE], EdgeStream()
    outputs = engine.generate(stage_request(engine, stream))
    stream.put({"codes": frames_of(3)})
    await anext(outputs)
    assert open_audios(stages) == 1
    await outputs.aclose()
    await until(lambda: open_audios(stages) == 0)


async def test_no_frames_are_no_audio(stages: OmniStages) -> None:
    collected, steps = await say(stages, frames_of(0), 1)
    assert (collected.finish_reason, steps) == (FinishReason.EMPTY_INPUT, 0)
    full = await stages.ask(STAGE, {"codes": frames_of(0)})
    assert full.finish_reason is FinishReason.EMPTY_INPUT


@pytest.mark.parametrize("code", [-1, 64])
async def test_a_code_outside_the_codebook_ends_its_request_alone(
    stages: OmniStages, reference: Any, code: int
) -> None:
    bad, good = frames_of(6), frames_of(12, 5)
    bad[5, 2] = code
    refused, heard = await asyncio.gather(say(stages, bad, 2), say(stages, good, 2), return_exceptions=True)
    assert isinstance(refused, InvalidTensorError)
    assert not isinstance(heard, BaseException)
    torch.testing.assert_close(heard[0].audio, whole(reference, good), atol=TOLERANCE, rtol=0)
    await until(lambda: open_audios(stages) == 0)
