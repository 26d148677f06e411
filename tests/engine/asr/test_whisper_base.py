"""asr/whisper with the published weights of Whisper base, if `make demo TALK=1` has fetched them into the cache."""

from __future__ import annotations

import asyncio
import wave
from pathlib import Path

import numpy as np
import pytest

from omni_cli.commands.demo import ASSETS
from omni_cli.weights.wheels import cache_folder
from omni_proto.stage_config import SamplingDefaults
from omni_stage.decoding.resample import resample
from omni_stage.models.asr.windows import LoudFrames
from omni_stage.models.component import AudioPart, ChatMessage, StageRequest, StageStep, UserPrompt
from support.engines.one_stage import collect, configure, running
from support.models.spoken import RATE_HZ, WhisperJudge

pytestmark = pytest.mark.engine
QUESTION = " What is the capital of France?"


@pytest.fixture(scope="module")
def checkpoint() -> Path:
    found = sorted(cache_folder().glob("whisper-base-*"))
    if not found:
        pytest.skip("the weights of Whisper base are not in the cache; `make demo TALK=1` fetches them")
    return found[0]


def test_a_question_and_a_long_file_are_understood(checkpoint: Path) -> None:
    with wave.open(str(ASSETS / "speech.wav")) as file:
        data, rate = file.readframes(file.getnframes()), file.getframerate()
    question = resample(np.frombuffer(data, np.int16).astype(np.float32) / 32768, rate, RATE_HZ)
    gap = np.zeros(14 * RATE_HZ, np.float32)
    long = np.concatenate([gap, question, gap, question, gap, question])

    def hear(name: str, samples: np.ndarray) -> StageRequest:
        source = UserPrompt(messages=[ChatMessage("user", [AudioPart(samples, RATE_HZ)])])
        return StageRequest(name, source, SamplingDefaults(temperature=0))

    async def run() -> list[list[StageStep]]:
        config = configure("asr/whisper", checkpoint, max_num_seqs=4, kv_cache_memory_mib=256)
        async with running(config) as engine:
            requests = hear("short", question), hear("long", long)
            return await asyncio.gather(*(collect(engine, request) for request in requests))

    short, heard = asyncio.run(run())
    assert "".join(step.text for step in short) == QUESTION
    judge = WhisperJudge(checkpoint)
    written = [token_id for step in short for token_id in step.token_ids]
    assert written == judge.write(question, timed=False, max_tokens=60)

    first_s = LoudFrames.of(long, RATE_HZ).next_start(0.0)
    assert first_s is not None
    window = long[round(first_s * RATE_HZ) :][: 30 * RATE_HZ]
    written = judge.write(window, timed=True, max_tokens=120)
    assert [token_id for step in heard for token_id in step.token_ids][: len(written)] == written

    segments = [segment for step in heard for segment in step.segments]
    assert len(segments) == 3
    # Where a segment ends within a pause is the model's guess; that it begins with the words is not.
    assert abs(segments[0].start_s - 14) < 0.5
    times = [time_s for segment in segments for time_s in (segment.start_s, segment.end_s)]
    assert times == sorted(times)
    assert times[-1] <= long.size / RATE_HZ
    # After a long pause, so small a model may mishear a short word.
    assert all({"capital", "France?"} <= set(segment.text.split()) for segment in segments)
