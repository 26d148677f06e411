"""Engine processes end with the process that started them, and signals to its process group do not reach them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from omni_proto.stage_config import SamplingDefaults
from omni_stage.errors import EngineDeadStageError, PrepareTimeoutError
from omni_stage.models.component import StageRequest, StageStep, UserPrompt
from omni_stage.vllm_adapter.core.interface import STEPS_IN_FLIGHT
from support.engines.one_stage import configure, running
from support.models.generic_checkpoint import write_tiny_text_checkpoint
from support.processes.polling import PATIENCE_S

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


def descendants(pid: int) -> list[int]:
    """Returns the ids of all descendants of a process."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += [int(child), *descendants(int(child))]
    return found


def is_engine(pid: int) -> bool:
    """Returns whether a process is a vLLM engine or worker, by its title, and not a helper of multiprocessing."""
    title = Path(f"/proc/{pid}/cmdline").read_bytes()
    return b"EngineCore" in title or b"Worker" in title


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until_gone(pids: list[int], seconds: float) -> list[int]:
    deadline = time.monotonic() + seconds
    while (left := [pid for pid in pids if is_running(pid)]) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


@pytest.mark.full  # tests/pipeline/faults/test_faults_processes.py tests the same with forked engines
def test_a_killed_server_leaves_no_process(tmp_path: Path) -> None:
    checkpoint = write_tiny_text_checkpoint(tmp_path / "tiny")
    script = tmp_path / "server.py"
    script.write_text(SERVER)
    log = (tmp_path / "server.log").open("wb")
    server = subprocess.Popen(
        [sys.executable, str(script), str(checkpoint)], stdout=subprocess.PIPE, stderr=log, start_new_session=True
    )
    below: list[int] = []
    try:
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n", (tmp_path / "server.log").read_text(errors="replace")
        below = descendants(server.pid)
        engines = [pid for pid in below if is_engine(pid)]
        assert engines
        # A signal to the server's process group does not reach them.
        assert server.pid not in {os.getpgid(pid) for pid in engines}
        server.kill()
        server.wait()
        assert wait_until_gone(below, 10) == []
    finally:
        server.kill()
        server.wait()
        for pid in wait_until_gone(below, 1):
            os.kill(pid, signal.SIGKILL)
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
    before = set(descendants(os.getpid()))
    async with running(config, in_process=False) as engine:
        below = [pid for pid in descendants(os.getpid()) if pid not in before]
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
        for pid in below:
            if is_engine(pid):
                os.kill(pid, signal.SIGKILL)
        with pytest.raises(EngineDeadStageError):
            await asyncio.wait_for(exhaust(steps), PATIENCE_S)
        assert engine.is_dead
        assert engine.unfinished_requests == 0
        with pytest.raises(EngineDeadStageError):
            await anext(engine.generate(request))
