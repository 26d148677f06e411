"""While a tensor of 64 MiB passes through a stage, no turn of the event loop delays other calls for long.

Each turn is measured in CPU time of the loop's thread, which a busy machine hardly changes.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import pytest
import torch

from omni_proto.pipeline.components import EngineKind
from omni_proto.stage_config import SamplingDefaults
from omni_proto.tensors import TensorSchema, TensorSpec
from omni_stage.models.component import FinishReason, StageRequest, StageStep
from support.processes.polling import PATIENCE_S
from support.stages import scripted_stages as lab

ROW, ROWS = 3584, 9362
"""A row has 7 KiB, like Qwen2.5-Omni-7B's hidden states. All rows together have just below 64 MiB, because a larger
buffer is copied as it grows."""
TENSOR = torch.ones(ROWS, ROW, dtype=torch.bfloat16)
WIDE = TensorSchema("test/wide", 1, (TensorSpec("x", "bfloat16", (ROW,)),))
MOST_S = 0.05
"""Limit of the longest turn in seconds. That turn takes 0.01 s. When all 64 MiB were one message, it took 0.178 s."""
PER_CHUNK_S = 0.0001


class Turns:
    """The CPU seconds of each turn, and which callback ran in it."""

    def __init__(self) -> None:
        self.taken: list[tuple[float, str]] = []


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> Iterator[Turns]:
    found = Turns()
    run = asyncio.Handle._run

    def timed(handle: asyncio.Handle) -> None:
        began = time.thread_time()
        run(handle)
        found.taken.append((time.thread_time() - began, repr(handle)))

    # As in the stage server, the garbage collector must not scan imported objects again and again. Those that exist
    # when the tests begin are frozen already (tests/conftest.py).
    gc.collect()
    monkeypatch.setattr(asyncio.Handle, "_run", timed)
    yield found
    monkeypatch.undo()


async def write_all(request: StageRequest) -> AsyncIterator[StageStep]:
    yield StageStep(token_ids=[1], prompt_token_ids=[1] * ROWS, tensors={"x": TENSOR}, finish_reason=FinishReason.STOP)


async def read_all(request: StageRequest) -> AsyncIterator[StageStep]:
    tensors = request.source.tensors  # type: ignore[union-attr]
    assert tensors["x"].shape == (ROWS, ROW)
    yield StageStep(audio=torch.zeros(480), finish_reason=FinishReason.DIFFUSION_DONE)


async def test_no_turn_is_long_while_a_tensor_passes(kit: Any, turns: Turns) -> None:
    below = await kit.serve(
        read_all,
        stage="talker",
        input={"source": "thinker"},
        outputs=["Audio"],
        component=lab.ScriptedComponent(
            kind=EngineKind.DIFFUSION, input_schema=WIDE, default_sampling=SamplingDefaults(), voices=("Chelsie",)
        ),
        max_model_len=ROWS + 10,
    )
    entry = await kit.serve(
        write_all,
        downstream=[kit.edge("talker", below.target, ["talker"])],
        component=lab.ScriptedComponent(output_schema=WIDE),
        max_model_len=ROWS + 10,
    )
    # The first request is not measured: it imports modules and opens connections.
    assert (await lab.ask(entry, [lab.start("a" * ROWS), lab.END], timeout_s=PATIENCE_S)).code is grpc.StatusCode.OK
    # The best of several, because the caches of a busy machine serve others between two turns.
    longest = min([await measure_longest(entry, turns) for _ in range(3)])
    assert longest[0] < MOST_S, longest[1]


async def measure_longest(entry: Any, turns: Turns) -> tuple[float, str]:
    """Returns the longest turn of one request."""
    turns.taken.clear()
    answer = await lab.ask(entry, [lab.start("a" * ROWS), lab.END], timeout_s=PATIENCE_S)
    assert answer.code is grpc.StatusCode.OK, answer.message
    assert sum(taken for taken, _ in turns.taken) > 64 * PER_CHUNK_S, "every chunk was measured"
    return max(turns.taken)
