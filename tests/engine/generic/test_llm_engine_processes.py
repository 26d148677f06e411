"""Engine processes end with the process that started them, and signals to its process group do not reach them."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from omni_proto.stage_config import SamplingDefaults
from omni_stage.errors import EngineDeadStageError, PrepareTimeoutError
from omni_stage.models.component import StageRequest, StageStep, UserPrompt
from omni_stage.vllm_adapter.core.interface import STEPS_IN_FLIGHT
from support.engines.one_stage import configure, running
from support.models.generic_checkpoint import write_tiny_text_checkpoint
from support.processes.polling import PATIENCE_S, wait_until

pytestmark = pytest.mark.engine

SERVER = """
import asyncio, sys
from omni_proto.stage_config import EngineArgs, ModelSource, StageConfig
from omni_stage.engine.factory import build_stage_engine

async def main():
    config = StageConfig(
        pipeline="text", stage="llm", component="generic/llm", model=ModelSource(path=sys.argv[1]),
        engine_args=EngineArgs(dtype="float32", max_model_len=64, kv_cache_memory_mib=4, enforce_eager=True),
    )
    engine = build_stage_engine(config)
    await engine.start()
    print("ready", flush=True)
    await asyncio.sleep(600)

if __name__ == "__main__":
    asyncio.run(main())
"""


def descendants(pid: int) -> set[psutil.Process]:
    return set(psutil.Process(pid).children(recursive=True))


def is_engine(process: psutil.Process) -> bool:
    """Returns whether a process is a vLLM engine or worker, by its title, and not a helper of multiprocessing."""
    with suppress(psutil.NoSuchProcess):
        return any("EngineCore" in part or "Worker" in part for part in process.cmdline())
    return False


def is_running(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


@pytest.mark.full  # tests/pipeline/faults/test_faults_processes.py tests the same with forked engines
def test_a_killed_server_leaves_no_process(tmp_path: Path) -> None:
    checkpoint = write_tiny_text_checkpoint(tmp_path / "tiny")
    script = tmp_path / "server.py"
    script.write_text(SERVER)
    log = (tmp_path / "server.log").open("wb")
    server = subprocess.Popen(
        [sys.executable, str(script), str(checkpoint)], stdout=subprocess.PIPE, stderr=log, start_new_session=True
    )
    below: set[psutil.Process] = set()
    try:
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n", (tmp_path / "server.log").read_text(errors="replace")
        below = descendants(server.pid)
        engines = list(filter(is_engine, below))
        assert engines
        # A signal to the server's process group does not reach them.
        assert server.pid not in {os.getpgid(engine.pid) for engine in engines}
        server.kill()
        server.wait()
        wait_until(lambda: not any(map(is_running, below)), why=lambda: list(filter(is_running, below)))
    finally:
        server.kill()
        server.wait()
        for process in below:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        log.close()


async def exhaust(steps: AsyncIterator[StageStep]) -> None:
    async for _ in steps:
        pass


async def check_preparing_is_no_work(engine: Any, request: StageRequest) -> None:
    """The watchdog does not count a request that vLLM's input processor still prepares. The request fails if the
    preparation takes too long."""
    processor = engine._core._llm.input_processor
    original, entered, gate = processor.process_inputs_async, asyncio.Event(), asyncio.Event()

    async def slow(*args: Any, **kwargs: Any) -> Any:
        entered.set()
        await gate.wait()
        return await original(*args, **kwargs)

    processor.process_inputs_async = slow
    engine._prepare_s = 0.05
    with pytest.raises(PrepareTimeoutError):
        await exhaust(engine.generate(request))
    engine._prepare_s = PATIENCE_S
    entered.clear()
    async with aclosing(engine.generate(request)) as steps:
        first = asyncio.ensure_future(anext(steps))
        await entered.wait()
        assert engine.unfinished_requests == 0
        gate.set()
        assert (await first).prompt_token_ids
        assert engine.unfinished_requests == 0, "the caller has a step, so nobody waits for the engine"
    assert engine.unfinished_requests == 0
    processor.process_inputs_async = original


async def test_requests_of_a_dead_engine_fail_at_once(tmp_path: Path) -> None:
    checkpoint = write_tiny_text_checkpoint(tmp_path / "tiny")
    config = configure("generic/llm", checkpoint, max_model_len=512, kv_cache_memory_mib=8, enforce_eager=True)
    before = descendants(os.getpid())
    async with running(config, in_process=False) as engine:
        below = descendants(os.getpid()) - before
        request = StageRequest(
            request_id="long",
            source=UserPrompt(text="Hello"),
            sampling=SamplingDefaults(temperature=0.0, max_tokens=500, ignore_eos=True),
        )
        await engine._core.serve_eager()
        in_flight = await engine._core._engine.engine_core.call_utility_async("__getattribute__", STEPS_IN_FLIGHT)
        assert in_flight == 1
        await check_preparing_is_no_work(engine, replace(request, request_id="prepared"))
        steps = engine.generate(request)
        await anext(steps)
        for engine_core in filter(is_engine, below):
            engine_core.kill()
        with pytest.raises(EngineDeadStageError):
            await asyncio.wait_for(exhaust(steps), PATIENCE_S)
        assert engine.is_dead
        assert engine.unfinished_requests == 0
        with pytest.raises(EngineDeadStageError):
            await anext(engine.generate(request))
