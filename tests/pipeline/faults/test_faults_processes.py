"""Stages and engines that die, hang, vanish and come back: real stage servers and engines in one tiny pipeline.

The tests share one pipeline per family and run in the order of this file. Each leaves the pipeline able to serve.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from omni_cli.local.guard import list_running
from omni_proto.client import AsyncOmniClient, GenerationResult, OmniRequestError, TokenDelta
from support.processes.polling import PATIENCE_S, wait_until
from support.processes.stage_processes import CHEAP, StageProcess, chain_configs, pick_chain_ports

pytestmark = [pytest.mark.pipeline, pytest.mark.timeout(600)]

STEP_TIMEOUT_S = 20.0
"""Longer than any step takes on a machine that is busy with other tests, so only a stuck engine exceeds it."""
MODEL = {"maxModelLen": 2048, "maxNumSeqs": 8, "dtype": "float32", "kvCacheMemoryMib": 64, "enforceEager": True}
SAMPLING = {"thinker": {"temperature": 0.0, "max_tokens": 8}, "talker": {"temperature": 0.0, "max_tokens": 16}}
LONG = {**SAMPLING, "talker": {"temperature": 0.0, "max_tokens": 1800, "min_tokens": 1800}}
"""Sampling that keeps the talker busy for many seconds."""


@dataclass
class Chain:
    """thinker -> talker -> token2wav or code2wav. Each is a process that can be killed and restarted."""

    processes: dict[str, StageProcess]
    client: AsyncOmniClient

    @property
    def last(self) -> str:
        """The stage that makes audio."""
        return list(self.processes)[-1]

    async def run(self, timeout_s: float = PATIENCE_S, **arguments: Any) -> GenerationResult:
        return await self.client.run(**{"raw_text": "hello", "sampling": SAMPLING, "timeout": timeout_s, **arguments})

    async def fail(self, **arguments: Any) -> OmniRequestError:
        with pytest.raises(OmniRequestError) as caught:
            await self.run(**arguments)
        return caught.value

    async def check_served(self) -> None:
        """Checks that a request succeeds. Channels have PATIENCE_S to reconnect to a peer that was lost."""
        began = time.monotonic()
        while True:
            try:
                result = await self.run()
                break
            except OmniRequestError as error:
                if time.monotonic() - began > PATIENCE_S:
                    raise AssertionError("the pipeline did not recover") from error
        assert result.text
        assert len(result.audio) > 0

    async def begin_long(self) -> tuple[asyncio.Task[OmniRequestError], asyncio.Event]:
        """Starts a long request and waits until the talker works on it.

        Returns a task whose result is the request's error, and an asyncio.Event that the talker's first token sets.
        """
        begun = asyncio.Event()

        async def consume() -> OmniRequestError:
            events = self.client.generate(
                raw_text="hello", sampling=LONG, include_codec_tokens=True, timeout=PATIENCE_S
            )
            try:
                async with aclosing(events):
                    async for event in events:
                        if isinstance(event, TokenDelta) and event.stage == "talker":
                            begun.set()
            except OmniRequestError as error:
                return error
            raise AssertionError("the request did not fail")

        task = asyncio.create_task(consume())
        done, _ = await asyncio.wait(
            {task, asyncio.create_task(begun.wait())}, timeout=PATIENCE_S, return_when="FIRST_COMPLETED"
        )
        assert begun.is_set(), [item.result() for item in done]
        return task, begun


@pytest.fixture(
    scope="module",
    params=[
        "qwen2_5_omni",
        # Both families have the same stage server. test_canaries.py and test_cancelled_engines.py also test this
        # family.
        pytest.param("qwen3_omni", marks=pytest.mark.full),
    ],
)
def processes(
    request: pytest.FixtureRequest, make_tiny_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, StageProcess]]:
    folder, family = tmp_path_factory.mktemp("faults"), request.param
    checkpoint = make_tiny_checkpoint(0, "small", family)
    timeouts = {"step": STEP_TIMEOUT_S, "drainNotice": 0.5, "request": 300}
    configs = chain_configs(
        pick_chain_ports(family), family=family, model={"path": str(checkpoint)}, engineArgs=MODEL, timeouts=timeouts
    )
    with ExitStack() as stack:
        chain = {
            stage: stack.enter_context(StageProcess([config], folder, fork=True)) for stage, config in configs.items()
        }
        for process in chain.values():
            process.start(wait=False)
        for process in chain.values():
            process.wait_ready()
        yield chain


@pytest.fixture
async def chain(processes: dict[str, StageProcess]) -> AsyncIterator[Chain]:
    async with AsyncOmniClient(f"127.0.0.1:{processes['thinker'].ports['thinker']['grpc']}") as client:
        yield Chain(processes, client)


def wait_until_gone(known: set[Any]) -> None:
    wait_until(lambda: not list_running(known), why=lambda: f"still there: {list_running(known)}")


async def test_killed_engine_ends_calls_and_the_stage_and_it_can_come_back(chain: Chain) -> None:
    await chain.check_served()
    talker = chain.processes["talker"]
    running, _ = await chain.begin_long()
    os.kill(talker.engine_core(), signal.SIGKILL)
    error = await asyncio.wait_for(running, PATIENCE_S)
    assert (error.code.name, error.reason, error.stage) == ("UNAVAILABLE", "ENGINE_DEAD", "talker")
    assert await asyncio.to_thread(talker.wait, PATIENCE_S) == 70
    assert json.loads(talker.termination.read_text())["reason"] == "EngineDead"
    # The talker is gone now. Requests without audio succeed, and requests with allow_partial get the text.
    error = await chain.fail()
    assert (error.code.name, error.reason, error.stage) == ("UNAVAILABLE", "DOWNSTREAM_UNAVAILABLE", "talker")
    assert (await chain.run(modalities=["text"])).text
    partial = await chain.run(allow_partial=True)
    assert partial.text
    assert partial.failed["talker"].error.reason == "DOWNSTREAM_UNAVAILABLE"
    talker.start()
    await chain.check_served()


async def test_hung_engine_ends_calls_and_fails_liveness(chain: Chain) -> None:
    talker = chain.processes["talker"]
    running, _ = await chain.begin_long()
    core = talker.engine_core()
    os.kill(core, signal.SIGSTOP)
    try:
        error = await asyncio.wait_for(running, STEP_TIMEOUT_S + PATIENCE_S)
        assert (error.code.name, error.reason, error.stage) == ("DEADLINE_EXCEEDED", "STEP_TIMEOUT", "talker")
        assert talker.health("talker", "liveness") == "NOT_SERVING"
        assert talker.health("talker", "readiness") == "NOT_SERVING"
        assert talker.poll() is None, "it does not end by itself: kubelet restarts it"
        assert json.loads(talker.termination.read_text())["reason"] == "StepTimeout"
        # The next request fails without waiting for the hung engine.
        error = await asyncio.wait_for(chain.fail(), PATIENCE_S)
        assert (error.code.name, error.stage) == ("UNAVAILABLE", "talker")
        known = talker.list_tree()
        # kubelet would send SIGTERM too. The engine is still suspended by SIGSTOP.
        talker.send(signal.SIGTERM)
        await asyncio.to_thread(talker.wait, PATIENCE_S)
        wait_until_gone(known)
    finally:
        if talker.poll() is None:
            os.kill(core, signal.SIGCONT)
    talker.start()
    await chain.check_served()


async def test_killed_stage_is_named_and_may_be_replaced_only_by_its_like(chain: Chain, tmp_path: Path) -> None:
    last = chain.processes[chain.last]
    known = last.list_tree()
    last.send(signal.SIGKILL)
    error = await chain.fail()
    assert (error.code.name, error.reason, error.stage) == ("UNAVAILABLE", "DOWNSTREAM_UNAVAILABLE", chain.last)
    wait_until_gone(known)
    with StageProcess(last.configs, tmp_path, CHEAP) as other_process:
        other_process.start()
        began = time.monotonic()
        while (error := await chain.fail()).reason == "DOWNSTREAM_UNAVAILABLE":
            assert time.monotonic() - began < PATIENCE_S
        assert (error.code.name, error.reason, error.stage) == (
            "FAILED_PRECONDITION",
            "EDGE_SCHEMA_MISMATCH",
            chain.last,
        )
        assert other_process.metric(chain.last, "cheap_executions") == 0
    last.start()
    await chain.check_served()


async def test_killed_stage_during_a_request(chain: Chain) -> None:
    talker = chain.processes["talker"]
    running, _ = await chain.begin_long()
    below = talker.list_tree()
    talker.send(signal.SIGKILL)
    error = await asyncio.wait_for(running, PATIENCE_S)
    assert (error.code.name, error.reason, error.stage) == ("UNAVAILABLE", "DOWNSTREAM_UNAVAILABLE", "talker")
    assert await asyncio.to_thread(talker.wait, PATIENCE_S) == -signal.SIGKILL
    # The talker's engine and its template were not killed, but must not outlive the stage server.
    assert len(below) > 1
    wait_until_gone(below)
    talker.start()
    await chain.check_served()


async def test_sigterm_with_requests_in_flight(chain: Chain) -> None:
    thinker, talker = chain.processes["thinker"], chain.processes["talker"]
    # So long that all are in flight at once even if this process has to wait for a core.
    spoken = {**SAMPLING, "talker": {"temperature": 0.0, "max_tokens": 200, "min_tokens": 200}}
    requests = [asyncio.create_task(chain.run(seed=number, sampling=spoken)) for number in range(4)]
    while await asyncio.to_thread(thinker.metric, "thinker", "omni_stage_inflight_requests") < 4:
        await asyncio.sleep(0.01)
        assert not any(request.done() for request in requests)
    known = thinker.list_tree()
    thinker.send(signal.SIGTERM)
    for result in await asyncio.gather(*requests):
        assert result.audio
    assert await asyncio.to_thread(thinker.wait, PATIENCE_S) == 0
    wait_until_gone(known)
    assert "drained" in thinker.read_log()
    assert talker.health("talker", "readiness") == "SERVING", "a stage's health is its own"
