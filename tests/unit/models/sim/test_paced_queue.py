"""Streamed requests that wait for an engine that simulates a GPU's pace: what counts as its queue."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_proto.stage_config import ModelSource, SamplingDefaults, StageConfig
from omni_stage.engine.factory import build_stage_engine
from omni_stage.models.component import EdgeStream, StageRequest, StageStep
from support.processes.polling import until
from support.stages.fast_table import write_fast_table

TEXT = {
    "x": np.zeros((7, 3584), np.uint16),
    "token_ids": np.zeros(7, np.int64),
    "mrope_positions": np.zeros((4, 3), np.int64),
    "mrope_delta": np.zeros(1, np.int64),
}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_fast_table(tmp_path_factory.mktemp("table"))


def engine(stage: str, path: Path, **args: Any) -> Any:
    config = StageConfig(
        pipeline="test",
        stage=stage,
        component=f"sim/{stage}",
        model=ModelSource(path=str(path)),
        input=None if stage == "thinker" else {"source": "above", "mode": "Stream"},
        engine_args=args,
    )
    return build_stage_engine(config)


def ask(name: str, stream: EdgeStream) -> StageRequest:
    return StageRequest(name, stream, SamplingDefaults(max_tokens=8))


async def collect(steps: AsyncIterator[StageStep]) -> list[StageStep]:
    return [step async for step in steps]


@pytest.mark.parametrize(("stage", "rows"), [("talker", TEXT), ("decoder", {"codes": np.zeros(30, np.int64)})])
async def test_a_request_is_submitted_when_its_first_rows_have_arrived(
    table: Path, stage: str, rows: dict[str, Any]
) -> None:
    paced, stream = engine(stage, table), EdgeStream()
    task = asyncio.create_task(collect(paced.generate(ask("a", stream))))
    await asyncio.sleep(0)
    put = time.monotonic_ns()
    stream.put(rows)
    stream.end()
    steps = await task
    assert put <= steps[0].submitted_ns <= steps[0].scheduled_ns


@pytest.mark.parametrize(("stage", "steps"), [("thinker", 25), ("talker", 24)])
def test_a_stage_knows_how_many_of_its_steps_the_first_window_needs(table: Path, stage: str, steps: int) -> None:
    """The thinker's first step makes no row of the reply, so its 25th step makes the row of the talker's 24th code."""
    assert engine(stage, table).component.first_audio_steps == steps


async def test_a_request_that_waits_for_its_place_in_the_engine_is_counted(table: Path) -> None:
    talker, streams = engine("talker", table, maxNumSeqs=1), [EdgeStream(), EdgeStream()]
    tasks = [asyncio.create_task(collect(talker.generate(ask(str(at), stream)))) for at, stream in enumerate(streams)]
    for stream in streams:
        stream.put(TEXT, ["mrope_positions", "mrope_delta"])
    await until(lambda: talker.waiting_requests == 1)
    assert talker.load.waiting == 0, "vLLM's scheduler does not know of it"
    for stream in streams:
        stream.end()
    await asyncio.gather(*tasks)
    assert talker.waiting_requests == 0
