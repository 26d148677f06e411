"""A paced engine for this case: every 10 ms each request gets a token, and a row if a downstream stage reads rows.

The steps of all requests arrive in one turn of the event loop, like those of a vLLM batch. Every token carries the time
at which it was due, so that its receiver knows how late it is. A text has that time as digits, and a row has it as its
token id. All times are CLOCK_MONOTONIC, which the processes of a machine share.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import numpy as np
import torch

from omni_proto.pipeline.components import ComponentFacts, EngineKind
from omni_proto.stage_config import Modality, SamplingDefaults, StageConfig
from omni_proto.tensors import TensorSchema, TensorSpec
from omni_stage.exchange import Array, to_torch
from omni_stage.models.component import EdgeStream, FinishReason, StageRequest, StageStep
from omni_stage.models.manifest import describe
from omni_stage.vllm_adapter.scheduling.playback import order_step

STEP_S = 0.01
ROW = 3584
"""Numbers in a row, as in Qwen2.5-Omni-7B's hidden states: 7 KiB of bfloat16."""
SCHEMA = TensorSchema("bench/tokens", 1, (TensorSpec("x", "bfloat16", (ROW,)), TensorSpec("token_ids", "int64")))
EARLY_ROWS = 8
"""The number of a request's first rows that are needed before its speech can begin."""
_MAX_AT_ONCE = 256


class Component:
    """The attributes of a component that the stage server reads if the engine does not prepare requests."""

    default_sampling = SamplingDefaults(max_tokens=16)
    voices = ()
    audio_rate_hz = 16_000
    max_aspect_ratio = 200

    def __init__(self, config: StageConfig) -> None:
        self.input_schema = SCHEMA if config.input else None
        self.output_schema = SCHEMA if config.downstream else None
        self.facts: ComponentFacts = describe(
            ComponentFacts(
                id="bench/tokens",
                kind=EngineKind.AUTOREGRESSIVE,
                outputs=(Modality.TEXT,),
                reads=self.input_schema and self.input_schema.id,
                publishes=self.output_schema and self.output_schema.id,
                streams_input=config.input is not None,
                writes_text=True,
            )
        )


class PacedEngine:
    """A StageEngine, which belongs to one event loop."""

    is_dead = False
    compiled_check_failed = False
    kernels_compiled = 0
    waiting_requests = 0
    prompt_embeds = None
    max_model_len = 1 << 14

    def __init__(self, config: StageConfig) -> None:
        self.component: Any = Component(config)
        self.unfinished_requests = 0
        self.last_step_monotonic = 0.0
        self._running: dict[str, _Running] = {}
        self._rows = torch.rand(_MAX_AT_ONCE, ROW).to(torch.bfloat16).split(1)
        self._clock: asyncio.Task[None] | None = None

    def open_tensors(self, received: Mapping[str, Any]) -> Mapping[str, Array]:
        """Returns received tensors as torch tensors."""
        return to_torch(received)

    async def start(self) -> None:
        """Start the clock."""
        self._clock = asyncio.create_task(self._tick())

    async def _tick(self) -> None:
        """Give every request a step every 10 ms. Steps that are late follow one another immediately."""
        due = time.monotonic()
        while True:
            due += STEP_S
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            self.last_step_monotonic = time.monotonic()
            due_us = int(due * 1e6)
            # OmniOutputProcessor hands out a batch's outputs in the same order.
            for number, request in enumerate(order_step(list(self._running.values()), _Running.count)):
                request.put(due_us, self._rows[number])

    async def generate(self, request: StageRequest) -> AsyncGenerator[StageStep, None]:
        """Yields tokens at the clock's pace. For a request with streamed input, yields the lateness of its rows."""
        self.unfinished_requests += 1
        try:
            source = request.source
            if isinstance(source, EdgeStream):
                yield StageStep(text=await _time_rows(source), token_ids=[1], prompt_token_ids=[1])
                yield StageStep(finish_reason=FinishReason.STOP)
                return
            running = self._running[request.request_id] = _Running(
                request.sampling.max_tokens or 1, request.want_tensors
            )
            while not running.over:
                yield await running.get()
            yield StageStep(finish_reason=FinishReason.LENGTH)
        finally:
            self._running.pop(request.request_id, None)
            self.unfinished_requests -= 1

    async def abort(self, request_id: str) -> None:
        """Does nothing: `generate` forgets a request when it is closed."""
        return

    async def shutdown(self) -> None:
        """Stop the clock."""
        if self._clock is not None:
            self._clock.cancel()


class _Running:
    """One request. Steps that its reader has not fetched are merged, as in vLLM's RequestOutputCollector."""

    def __init__(self, tokens: int, has_rows: bool) -> None:
        self._tokens = self._left = tokens
        self._has_rows = has_rows
        self._first = True
        self._due: list[int] = []
        self._rows: list[torch.Tensor] = []
        self._ready = asyncio.Event()

    def count(self) -> int:
        """Returns how many tokens the request has got so far."""
        return self._tokens - self._left

    @property
    def over(self) -> bool:
        return not self._left and not self._due

    def put(self, due_us: int, row: torch.Tensor) -> None:
        if self._left:
            self._left -= 1
            self._due.append(due_us)
            self._rows.append(row)
            self._ready.set()

    async def get(self) -> StageStep:
        await self._ready.wait()
        self._ready.clear()
        due, self._due = self._due, []
        rows, self._rows = self._rows, []
        tensors: dict[str, Array] = {}
        if self._has_rows:
            # The thinker's emitter makes the same two arrays: torch rows as the engine returns them, and numpy ids.
            x = rows[0] if len(rows) == 1 else torch.cat(rows)
            tensors = {"x": x, "token_ids": np.array(due, dtype=np.int64)}
        prompt, self._first = ([1] if self._first else None), False
        text = f"{due[0]} " if len(due) == 1 else "".join(f"{one} " for one in due)
        return StageStep(text=text, token_ids=due, prompt_token_ids=prompt, tensors=tensors)


async def _time_rows(source: EdgeStream) -> str:
    """Returns how late every row was in microseconds, as JSON."""
    late: list[int] = []
    while True:
        read = await source.read()
        now = int(time.monotonic() * 1e6)
        if "token_ids" in read.tensors:
            late += [now - due for due in read.tensors["token_ids"].tolist()]
        if read.ended:
            return json.dumps(late)
