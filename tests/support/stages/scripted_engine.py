"""An engine that plays scripted steps instead of running a model."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

from omni_proto.tensors import TensorSpec
from omni_stage.exchange import to_torch
from omni_stage.models.component import StageRequest, StageStep
from support.stages.scripted_component import Script, ScriptedComponent


@dataclass
class ScriptedEngine:
    """A StageEngine that plays a script for every request, and records requests and aborts."""

    component: ScriptedComponent
    script: Script
    max_model_len: int = 64
    prompt_embeds: TensorSpec | None = None
    is_dead: bool = False
    compiled_check_failed: bool = False
    kernels_compiled: int = 0
    reused_rows: tuple[int, int] = (0, 0)
    unfinished_requests: int = 0
    waiting_requests: int = 0
    last_step_monotonic: float = 0.0
    requests: list[StageRequest] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    started: asyncio.Event = field(default_factory=asyncio.Event)
    read: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the server has handled the first step and requests the next one."""
    was_shut_down: bool = False

    def open_tensors(self, received: Any) -> Any:
        return to_torch(received)

    async def start(self) -> None:
        return

    async def generate(self, request: StageRequest) -> AsyncGenerator[StageStep, None]:
        self.requests.append(request)
        if not self.unfinished_requests:
            self.last_step_monotonic = time.monotonic()
        self.unfinished_requests += 1
        self.started.set()
        finished = False
        try:
            async for step in self.script(request):
                self.last_step_monotonic = time.monotonic()
                finished = step.finish_reason is not None
                yield step
                self.read.set()
        finally:
            self.unfinished_requests -= 1
            if not finished:
                self.aborted.append(request.request_id)
            self.ended.set()

    async def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)

    async def shutdown(self) -> None:
        self.was_shut_down = True
