"""Short prompts never wait for long ones, less long ones pass longer ones, and callers who left cost nothing."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from omni_proto.stage_config import SamplingDefaults
from omni_stage.engine.preparation import LIGHT_THREADS, Preparers
from omni_stage.errors import EngineDeadStageError
from omni_stage.models.component import ChatMessage, StageRequest, TextPart, UserPrompt
from omni_stage.models.component.prompt import LIGHT_CHARS
from support.processes.polling import PATIENCE_S


def request(prompt: UserPrompt, name: str = "r") -> StageRequest:
    return StageRequest(request_id=name, source=prompt, sampling=SamplingDefaults())


def of_chars(chars: int, name: str = "r") -> StageRequest:
    return request(UserPrompt(text="a" * chars), name)


HEAVY: dict[str, UserPrompt] = {
    "text": UserPrompt(text="a" * (LIGHT_CHARS + 1)),
    "one long message": UserPrompt(messages=[ChatMessage("user", [TextPart("a" * (LIGHT_CHARS + 1))])]),
    "many messages": UserPrompt(messages=[ChatMessage("user", [TextPart("a")])] * 1000),
    "a loop count": UserPrompt(messages=[ChatMessage("user", [TextPart("a")])], template_arguments={"n": 10**9}),
    "a list to loop over": UserPrompt(messages=[ChatMessage("user", [TextPart("a")])], template_arguments={"n": [1]}),
}


@pytest.mark.parametrize("case", HEAVY)
async def test_short_prompts_do_not_wait_for_heavy_ones(case: str) -> None:
    """As many heavy prompts as an attacker likes: a short one is prepared before any of them ends."""
    preparers, open_gate = Preparers(1), threading.Event()
    heavy = [
        asyncio.create_task(preparers.run(lambda _: open_gate.wait(PATIENCE_S), request(HEAVY[case])))
        for _ in range(64)
    ]
    await asyncio.sleep(0)
    switches = {"enable_thinking": False, "effort": "low", "budget": 3}
    chat = UserPrompt(messages=[ChatMessage("user", [TextPart("hi")])], template_arguments=switches)
    for prompt in (UserPrompt(text="hi"), chat):
        assert await preparers.run(lambda asked: asked.request_id, request(prompt, "short")) == "short"
    assert not any(task.done() for task in heavy)
    open_gate.set()
    assert all(await asyncio.gather(*heavy))
    preparers.shutdown()


async def test_shorter_ones_pass_and_who_left_is_skipped() -> None:
    preparers, gate, order = Preparers(1), threading.Event(), []

    def note(asked: StageRequest) -> None:
        order.append(asked.request_id)
        gate.wait(PATIENCE_S)

    tasks = {"first": asyncio.create_task(preparers.run(note, of_chars(1 << 20, "first")))}
    await asyncio.sleep(0)
    for name, chars in {"a": 1 << 20, "gone": 900_000, "b": 1 << 20, "short": 100_000}.items():
        tasks[name] = asyncio.create_task(preparers.run(note, of_chars(chars, name)))
        await asyncio.sleep(0)
    tasks["gone"].cancel()
    await asyncio.wait([tasks["gone"]])
    gate.set()
    await asyncio.gather(*(task for name, task in tasks.items() if name != "gone"))
    assert order == ["first", "short", "a", "b"]
    preparers.shutdown()


@pytest.mark.parametrize("chars", [1, 1 << 20])
async def test_a_thread_is_taken_until_its_function_ends(chars: int) -> None:
    """A caller who leaves does not free the thread that works for it, so the work at a time stays bounded."""
    preparers, gate, running, most = Preparers(1), threading.Event(), [0], [0]

    def work(_: Any) -> None:
        running[0] += 1
        most[0] = max(most[0], running[0])
        gate.wait(PATIENCE_S)
        running[0] -= 1

    for _ in range(12):
        task = asyncio.create_task(preparers.run(work, of_chars(chars)))
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait([task])
    gate.set()
    await preparers.run(lambda _: None, of_chars(chars))
    assert 1 <= most[0] <= LIGHT_THREADS
    preparers.shutdown()


async def test_an_error_reaches_the_caller() -> None:
    preparers = Preparers(1)
    for chars in (1, 1 << 20, 1):
        with pytest.raises(ZeroDivisionError):
            await preparers.run(lambda asked: 1 // 0, of_chars(chars))
    preparers.shutdown()


async def test_requests_after_the_end_fail_because_the_engine_is_dead() -> None:
    """Whether they wait for a thread, wait in a thread's queue, or come later."""
    preparers, open_gate = Preparers(1), threading.Event()
    long = of_chars(LIGHT_CHARS + 1)
    running = asyncio.create_task(preparers.run(lambda _: open_gate.wait(PATIENCE_S), long))
    waiting = [asyncio.create_task(preparers.run(lambda _: None, one)) for one in (long, of_chars(LIGHT_CHARS + 2))]
    await asyncio.sleep(0.05)
    preparers.shutdown()
    for task in waiting:
        with pytest.raises(EngineDeadStageError):
            await task
    for late in (of_chars(1), long):
        open_gate.set()
        with pytest.raises(EngineDeadStageError):
            await preparers.run(lambda _: None, late)
    assert await running
