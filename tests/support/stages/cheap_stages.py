"""Stage servers in a process of their own with engines that do no work, for tests of memory, floods and signals.

    python tests/support/stages/cheap_stages.py thinker.yaml talker.yaml ...     # several stages share a process

With one file, the process calls `run_stage` as `python -m omni_stage serve` does, with its signal handling and exit
codes. With several, all stages share one event loop. Each stage's ports are written to FILE.address.json, and /metrics
has cheap_* gauges besides the product's own metrics.

The engine makes max_tokens steps, one every top_k milliseconds (0: without a pause). The last stage returns its audio
after num_inference_steps x 10 ms.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import prometheus_client
import uvloop
from prometheus_client import CollectorRegistry, Gauge

from omni_proto.pipeline.components import EngineKind
from omni_proto.stage_config import SamplingDefaults, StageConfig, load_stage_config
from omni_proto.tensors import TensorSchema, TensorSpec
from omni_stage.exchange import to_numpy
from omni_stage.models.component import FinishReason, StageRequest, StageStep
from omni_stage.process.stage_log import configure_stage_logging
from omni_stage.process.startup import tune_malloc
from omni_stage.service.server.stage_server import StageServer, run_stage
from support.stages.scripted_component import Script, ScriptedComponent
from support.stages.tensor_chunks import bfloat16_bits

ROW = 3584
"""Values in a row: the hidden size of Qwen2.5-Omni-7B's thinker, 7 KiB in bfloat16."""
EDGE_A = TensorSchema("cheap/a2b", 1, (TensorSpec("x", "bfloat16", (ROW,)), TensorSpec("ids", "int64")))
EDGE_B = TensorSchema("cheap/b2c", 1, (TensorSpec("codes", "int64"),))
MAX_MODEL_LEN = 4096
WORD = "w" * 1023 + " "
"""The thinker's text of each step."""


async def _steps(request: StageRequest) -> AsyncIterator[int]:
    pause = (request.sampling.top_k or 0) / 1000
    for number in range(request.sampling.max_tokens or 1):
        await asyncio.sleep(pause)
        yield number


async def think(request: StageRequest) -> AsyncIterator[StageStep]:
    """Yields a word of 1 KiB in each step, and a row if the request wants tensors."""
    async for number in _steps(request):
        tensors = {}
        if request.want_tensors:
            rows = bfloat16_bits(np.full((1, ROW), number % 7, np.float32))
            tensors = {"x": rows, "ids": np.array([number])}
        yield StageStep(text=WORD, token_ids=[1], prompt_token_ids=None if number else [1], tensors=tensors)
    yield StageStep(finish_reason=FinishReason.LENGTH)


async def talk(request: StageRequest) -> AsyncIterator[StageStep]:
    """Yields a code in each step."""
    async for number in _steps(request):
        yield StageStep(token_ids=[number], tensors={"codes": np.array([number])} if request.want_tensors else {})
    yield StageStep(finish_reason=FinishReason.LENGTH)


async def speak(request: StageRequest) -> AsyncIterator[StageStep]:
    """Yields 8 samples of silence for each code, in one step."""
    codes = request.source.tensors["codes"]  # type: ignore[union-attr]
    await asyncio.sleep((request.sampling.num_inference_steps or 0) / 100)
    yield StageStep(audio=np.zeros(8 * len(codes), np.float32), finish_reason=FinishReason.DIFFUSION_DONE)


class CheapEngine:
    """A StageEngine that plays a script. It keeps nothing of a request but counts, so its memory does not grow."""

    is_dead = False
    compiled_check_failed = False
    kernels_compiled = 0
    reused_rows = (0, 0)
    waiting_requests = 0
    prompt_embeds = None

    def __init__(self, component: ScriptedComponent, script: Script) -> None:
        self.component = component
        self.max_model_len = MAX_MODEL_LEN
        self.unfinished_requests = 0
        self.executions = 0
        self.last_step_monotonic = 0.0
        self._script = script

    def open_tensors(self, received: Any) -> Any:
        return to_numpy(received)

    async def start(self) -> None:
        return

    async def generate(self, request: StageRequest) -> AsyncGenerator[StageStep, None]:
        if not self.unfinished_requests:
            self.last_step_monotonic = time.monotonic()
        self.unfinished_requests += 1
        self.executions += 1
        try:
            async for step in self._script(request):
                self.last_step_monotonic = time.monotonic()
                yield step
        finally:
            self.unfinished_requests -= 1

    async def abort(self, request_id: str) -> None:
        return

    async def shutdown(self) -> None:
        return


def make_engine(config: StageConfig) -> CheapEngine:
    """Returns the engine for a stage, chosen by the stage's name."""
    if config.stage in ("token2wav", "code2wav"):
        nothing = SamplingDefaults()
        component = ScriptedComponent(kind=EngineKind.DIFFUSION, input_schema=EDGE_B, default_sampling=nothing)
        return CheapEngine(component, speak)
    few = SamplingDefaults(max_tokens=4)
    if config.stage == "talker":
        component = ScriptedComponent(
            input_schema=EDGE_A, output_schema=EDGE_B, writes_text=False, default_sampling=few
        )
        return CheapEngine(component, talk)
    return CheapEngine(ScriptedComponent(output_schema=EDGE_A, default_sampling=few), think)


def add_gauges(registry: CollectorRegistry, engine: CheapEngine) -> None:
    """Adds gauges of executions, and of asyncio tasks and unfinished requests, which must not leak."""
    loop = asyncio.get_running_loop()
    gauges: dict[str, Callable[[], float]] = {
        "cheap_tasks": lambda: len(asyncio.all_tasks(loop)),
        "cheap_unfinished": lambda: engine.unfinished_requests,
        "cheap_executions": lambda: engine.executions,
    }
    for name, read in gauges.items():
        Gauge(name, name, registry=registry).set_function(read)


async def serve_one(address_file: Path, config: StageConfig) -> int:
    """Serves one stage as the product does. Returns the exit code."""
    engine: Any = make_engine(config)
    add_gauges(prometheus_client.REGISTRY, engine)
    return int(await run_stage(config, lambda _: engine, address_file))


def _ready_made(engine: Any, _: StageConfig) -> Any:
    return engine


async def serve_all(configs: dict[Path, StageConfig]) -> int:
    """Serves all stages until SIGTERM. Returns the exit code 0."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with AsyncExitStack() as stack:
        for address_file, config in configs.items():
            registry, engine = CollectorRegistry(), make_engine(config)
            add_gauges(registry, engine)
            server = StageServer(config, registry)
            stack.push_async_callback(server.close)
            ports = await server.start(partial(_ready_made, engine))
            ports.write(address_file)
        await stop.wait()
    return 0


def main(files: list[str]) -> int:
    configs = {Path(f"{file}.address.json"): load_stage_config(Path(file)) for file in files}
    configure_stage_logging("+".join(config.stage for config in configs.values()), "text")
    logging.getLogger().setLevel(logging.WARNING)
    tune_malloc()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if len(configs) == 1:
            return runner.run(serve_one(*configs.popitem()))
        return runner.run(serve_all(configs))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
