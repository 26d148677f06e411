"""SimpleEngine: what the watchdog sees of an engine whose author wrote `run`, and how its requests end."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

import pytest

from omni_proto.pipeline.components import ComponentFacts, EngineKind
from omni_proto.stage_config import ModelSource, SamplingDefaults, StageConfig
from omni_stage.errors import ConfigurationError, InvalidRequestError, ModelExecutionError
from omni_stage.models.component import EdgeStream, FinishReason, StageRequest, StageStep, UserPrompt
from omni_stage.models.shared.text.edge import iterate_text, text_rows
from omni_stage.models.simple_engine import SimpleComponent, SimpleEngine
from omni_stage.service.server.watchdog import EngineVerdict, judge
from support.processes.polling import PATIENCE_S, until

FACTS = ComponentFacts(id="test/own", kind=EngineKind.DECODER)
STEP_TIMEOUT_S = 30.0


class Own(SimpleEngine):
    """Yields what a function returns for each piece of the input."""

    def __init__(self, function: Callable[[str], str] = str.upper, *, loads: Callable[[], None] | None = None) -> None:
        config = StageConfig(pipeline="p", stage="s", component=FACTS.id, model=ModelSource(path="/m"))
        super().__init__(config, SimpleComponent(FACTS))
        self.function, self.loads = function, loads
        self.closed = False

    def load(self) -> None:
        if self.loads is not None:
            self.loads()

    def warmup_request(self) -> StageRequest:
        return ask("warm up")

    async def run(self, request: StageRequest) -> AsyncGenerator[StageStep, None]:
        try:
            if isinstance(request.source, EdgeStream):
                async for text in iterate_text(request.source):
                    yield StageStep(text=await self.work(self.function, text))
            elif isinstance(request.source, UserPrompt):
                yield StageStep(text=await self.work(self.function, request.source.text or ""))
            yield StageStep(finish_reason=FinishReason.STOP)
        finally:
            self.closed = True


def ask(source: Any, name: str = "r") -> StageRequest:
    prompt = UserPrompt(text=source) if isinstance(source, str) else source
    return StageRequest(request_id=name, source=prompt, sampling=SamplingDefaults())


async def collect(engine: SimpleEngine, request: StageRequest) -> str:
    async with aclosing(engine.generate(request)) as steps:
        return "".join([step.text async for step in steps])


def verdict(engine: SimpleEngine, later_s: float = 0.0) -> EngineVerdict:
    return judge(
        is_dead=engine.is_dead,
        unfinished=engine.unfinished_requests,
        last_step=engine.last_step_monotonic,
        now=time.monotonic() + later_s,
        step_timeout_s=STEP_TIMEOUT_S,
    )


async def test_a_request_and_the_warm_up() -> None:
    loaded: list[int] = []
    engine = Own(loads=lambda: loaded.append(threading.get_ident()))
    await engine.start()
    assert loaded
    assert loaded[0] != threading.get_ident(), "the event loop is free while the model loads"
    assert await collect(engine, ask("hello")) == "HELLO"
    assert engine.closed
    assert engine.unfinished_requests == 0
    await engine.shutdown()
    await engine.shutdown()


async def test_an_engine_that_was_idle_for_long_is_not_stuck() -> None:
    """The time of the last step is that of the first work after the engine was idle."""
    begun, proceed = threading.Event(), threading.Event()

    def wait(text: str) -> str:
        begun.set()
        proceed.wait(PATIENCE_S)
        return text

    engine = Own(wait)
    engine.last_step_monotonic -= 1000.0
    running = asyncio.ensure_future(collect(engine, ask("x")))
    await until(begun.is_set)
    assert engine.unfinished_requests == 1
    assert verdict(engine) is EngineVerdict.HEALTHY
    assert verdict(engine, STEP_TIMEOUT_S + 1) is EngineVerdict.STUCK, "work that does not end"
    proceed.set()
    await running
    await until(lambda: engine.unfinished_requests == 0)


async def test_a_request_that_waits_for_its_input_is_no_work() -> None:
    stream = EdgeStream()
    read = list[str]()
    engine = Own(lambda text: read.append(text) or text.upper())  # type: ignore[func-returns-value]
    running = asyncio.ensure_future(collect(engine, ask(stream)))
    stream.put(text_rows("a"))
    await until(lambda: read and verdict(engine, 1000.0) is EngineVerdict.HEALTHY)
    stream.put(text_rows("b"))
    stream.end()
    assert await running == "AB"


async def test_a_cancelled_request_leaves_its_thread_at_work() -> None:
    begun, proceed = threading.Event(), threading.Event()

    def wait(text: str) -> str:
        begun.set()
        proceed.wait(PATIENCE_S)
        return text

    engine = Own(wait)
    running = asyncio.ensure_future(collect(engine, ask("x")))
    await until(begun.is_set)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert engine.closed
    assert engine.unfinished_requests == 1, "a thread that never ends is a stuck engine"
    proceed.set()
    await until(lambda: engine.unfinished_requests == 0)


async def test_an_aborted_request_fails() -> None:
    engine = Own()
    running = asyncio.ensure_future(collect(engine, ask(EdgeStream())))
    await asyncio.sleep(0)
    await engine.abort("unknown")
    await engine.abort("r")
    await engine.abort("r")
    with pytest.raises(ModelExecutionError, match="aborted"):
        await running
    assert engine.closed


async def test_errors() -> None:
    def fail(text: str) -> str:
        if text == "no":
            raise InvalidRequestError("not this")
        raise ZeroDivisionError("secret")

    engine = Own(fail)
    with pytest.raises(InvalidRequestError, match="not this"):
        await collect(engine, ask("no"))
    with pytest.raises(ModelExecutionError, match="component test/own failed: ZeroDivisionError"):
        await collect(engine, ask("x"))
    with pytest.raises(ConfigurationError, match="the warm-up request of test/own failed"):
        await engine.start()
    assert engine.unfinished_requests == 0
