"""The pipeline with Stream edges in three processes: its output equals that of Full edges, and audio starts earlier."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import pytest

from omni_proto.client import Accepted, AsyncOmniClient, AudioChunk, OmniRequestError, StageFinished, TokenDelta
from support.processes.pipelines import RunningPipeline
from support.processes.polling import PATIENCE_S

pytestmark = pytest.mark.pipeline

LONG_THINKER = {"max_tokens": 48, "ignore_eos": True}
JOBS: dict[str, dict[str, Any]] = {
    "greedy": {"raw_text": "Hello"},
    "another length": {"raw_text": "What do you know about the weather in the mountains?"},
    "seeded": {
        "raw_text": "Hi",
        "seed": 5,
        "sampling": {"thinker": {"temperature": 0.8}, "talker": {"temperature": 1.2}},
    },
    "long, seeded": {
        "raw_text": "One, two, three",
        "seed": 2**40,
        "sampling": {
            "thinker": {"temperature": 1.0, **LONG_THINKER},
            "talker": {"temperature": 0.9, "max_tokens": 80, "ignore_eos": True},
        },
    },
    "one word": {"raw_text": "a", "sampling": {"thinker": {"max_tokens": 2, "ignore_eos": True}}},
    "nothing to speak": {"raw_text": "a b", "sampling": {"thinker": {"max_tokens": 1}}},
    "talker stops first": {
        "raw_text": "Tell me more",
        "sampling": {"thinker": LONG_THINKER, "talker": {"max_tokens": 3, "ignore_eos": True}},
    },
    "repetition penalty": {"raw_text": "Go on", "sampling": {"talker": {"repetition_penalty": 1.4}}, "voice": "Ethan"},
}


SHORT: dict[str, Any] = {"raw_text": "Hello", "sampling": {"thinker": {"max_tokens": 12}, "talker": {"max_tokens": 24}}}


async def run(client: AsyncOmniClient, job: dict[str, Any], **more: Any) -> Any:
    arguments = {"seed": 1, "include_token_ids": True, "include_codec_tokens": True, "timeout": PATIENCE_S}
    # Two diffusion steps instead of ten save time. The test compares what the edges carry.
    sampling = {"token2wav": {"num_inference_steps": 2}, **job.get("sampling", {})}
    return await client.run(**{**arguments, **job, "sampling": sampling, **more})


def outcome(result: Any) -> Any:
    """Returns everything that must not depend on the edges' mode. Of the audio, that is only the length."""
    reasons = {stage: finished.finish_reason for stage, finished in result.finished.items()}
    return result.text, dict(result.token_ids), reasons, len(result.audio)


async def test_equal_to_full_alone_and_eight_at_once(
    stream_pipeline: RunningPipeline, tiny_pipeline: RunningPipeline
) -> None:
    async with AsyncOmniClient(tiny_pipeline.endpoint) as full, AsyncOmniClient(stream_pipeline.endpoint) as stream:
        expected = {name: outcome(await run(full, job)) for name, job in JOBS.items()}
        for name in ("long, seeded", "talker stops first", "nothing to speak"):
            assert outcome(await run(stream, JOBS[name])) == expected[name], name
        together = await asyncio.gather(*(run(stream, job) for job in JOBS.values()))
    for name, result in zip(JOBS, together, strict=True):
        assert outcome(result) == expected[name], name
    assert expected["nothing to speak"][2]["talker"] == "empty_input"
    assert len(set(map(str, expected.values()))) == len(JOBS), "jobs that all answer alike show nothing"


class Hold:
    """Stops a stage's engine after `after` tokens, until the next stage has sent its first output."""

    def __init__(self, engine: int, after: int) -> None:
        self._engine = engine
        self._after = after
        self.state = "runs"

    def update(self, said: int, below_said: bool) -> None:
        if self.state == "runs" and not below_said and said >= self._after:
            os.kill(self._engine, signal.SIGSTOP)
            self.state = "stopped"
        elif self.state == "stopped" and below_said:
            self.release()

    def release(self) -> None:
        os.kill(self._engine, signal.SIGCONT)
        self.state = "released"


async def test_every_stage_speaks_before_the_one_above_has_ended(stream_pipeline: RunningPipeline) -> None:
    """Each stage sends output while the engine of the stage above is stopped halfway.

    So a stage cannot have waited for the end of its input before it sent output.
    """
    order: list[str] = []
    timings = {}
    thinker = Hold(stream_pipeline.engine_core("thinker"), after=20)
    talker = Hold(stream_pipeline.engine_core("talker"), after=60)  # token2wav's first window is 12 codec tokens
    async with AsyncOmniClient(stream_pipeline.endpoint) as client:
        # The replies are long, so that no engine finishes before the test, on a busy machine, can stop it.
        sampling = {
            "thinker": {"max_tokens": 700, "ignore_eos": True},
            "talker": {"max_tokens": 400, "ignore_eos": True},
        }
        events = client.generate(
            raw_text="One, two, three",
            sampling=sampling,
            include_token_ids=True,
            include_codec_tokens=True,
            timeout=2 * PATIENCE_S,
        )
        try:
            async for event in events:
                if isinstance(event, TokenDelta):
                    order += [event.stage] * len(event.ids)
                elif isinstance(event, Accepted | AudioChunk):
                    order.append(f"{event.stage} {type(event).__name__}")
                elif isinstance(event, StageFinished):
                    order.append(f"{event.stage} finished")
                    timings[event.stage] = event.timings
                thinker.update(order.count("thinker"), "talker" in order)
                talker.update(order.count("talker"), "token2wav AudioChunk" in order)
        finally:
            thinker.release()
            talker.release()
    assert order.index("talker") < order.index("thinker finished")
    last_thinker = len(order) - 1 - order[::-1].index("thinker")
    assert order.index("talker") < last_thinker, "the first codec token came before the last word"
    last_talker = len(order) - 1 - order[::-1].index("talker")
    assert order.index("token2wav AudioChunk") < last_talker, "the first sound came before the last codec token"
    accepted = [f"{stage} Accepted" for stage in ("thinker", "talker", "token2wav")]
    assert [event for event in order if event.endswith("Accepted")] == accepted
    for stage in ("thinker", "talker"):
        assert order.index(f"{stage} Accepted") < order.index(stage)
    assert order.index("token2wav Accepted") < order.index("token2wav AudioChunk")
    for stage in ("talker", "token2wav"):
        # Each stage's own timings agree. input_complete_ns is 0 if a stage ended before its input did.
        complete = timings[stage].input_complete_ns
        assert complete == 0 or 0 < timings[stage].first_output_ns < complete, stage


REFUSED = {"min_tokens": 3, "presence_penalty": 0.5, "frequency_penalty": 0.5}


@pytest.mark.parametrize("name", REFUSED)
async def test_what_a_streamed_stage_cannot_honour_is_refused_before_anything_is_written(
    stream_pipeline: RunningPipeline, name: str
) -> None:
    async with AsyncOmniClient(stream_pipeline.endpoint) as client:
        events = client.generate(raw_text="Hello", sampling={"talker": {name: REFUSED[name]}}, timeout=PATIENCE_S)
        # Not even Accepted arrives: the thinker asks the talker first.
        with pytest.raises(OmniRequestError) as caught:
            await anext(events)
    assert (caught.value.code.name, caught.value.stage) == ("INVALID_ARGUMENT", "talker")
    assert caught.value.field == f"start.sampling[talker].{name}"


async def test_calls_that_are_left_free_their_sessions(stream_pipeline: RunningPipeline) -> None:
    """Clients abandon more half-fed sessions than the talker can hold. Afterwards it can hold as many as before."""
    long = {"thinker": {"max_tokens": 1500, "ignore_eos": True}, "talker": {"max_tokens": 1800, "ignore_eos": True}}
    async with AsyncOmniClient(stream_pipeline.endpoint) as client:

        async def leave() -> None:
            events = client.generate(raw_text="Hello", sampling=long, include_codec_tokens=True, timeout=PATIENCE_S)
            async for event in events:
                if isinstance(event, TokenDelta) and event.stage == "talker":
                    break
            await events.aclose()

        for _ in range(3):
            await asyncio.gather(*(leave() for _ in range(6)))
        expected = outcome(await run(client, JOBS["seeded"]))
        for result in await asyncio.gather(*(run(client, JOBS["seeded"]) for _ in range(8))):
            assert outcome(result) == expected


async def test_more_than_it_takes_is_refused_at_once_or_served(stream_pipeline: RunningPipeline) -> None:
    async with AsyncOmniClient(stream_pipeline.endpoint) as client:
        expected = outcome(await run(client, SHORT))
        results = await asyncio.wait_for(
            asyncio.gather(*(run(client, SHORT) for _ in range(30)), return_exceptions=True), 3 * PATIENCE_S
        )
        served = [item for item in results if not isinstance(item, BaseException)]
        refused = [item for item in results if isinstance(item, BaseException)]
        assert len(served) >= 8
        assert all(outcome(item) == expected for item in served)
        for error in refused:
            assert isinstance(error, OmniRequestError)
            assert (error.code.name, error.reason) == ("RESOURCE_EXHAUSTED", "TOO_MANY_REQUESTS")
            assert error.retry_after_s
        assert outcome(await run(client, SHORT)) == expected
