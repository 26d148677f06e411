"""SIGTERM lets a stage server finish its requests and exit with 0. A second SIGTERM aborts them."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from omni_proto.client import Accepted, AsyncOmniClient, OmniRequestError
from support.processes.polling import PATIENCE_S, wait_until
from support.processes.stage_processes import CHEAP, StageProcess, chain_configs, pick_chain_ports
from support.stages.cheap_stages import WORD

pytestmark = pytest.mark.pipeline

WORDS, MANY = 20, 1000
"""Lengths of requests that take two seconds, and that go on until they are aborted."""


@pytest.fixture
def entry(tmp_path: Path) -> Iterator[StageProcess]:
    config = chain_configs(pick_chain_ports(), timeouts={"drainNotice": 0.5})["thinker"]
    with StageProcess([config], tmp_path, CHEAP) as process:
        yield process.start()


async def collect_text(client: AsyncOmniClient, begun: asyncio.Event, words: int = WORDS) -> str:
    text, sampling = "", {"thinker": {"max_tokens": words, "top_k": 100}}
    async for event in client.generate(raw_text="hello", modalities=["text"], sampling=sampling, timeout=PATIENCE_S):
        if isinstance(event, Accepted):
            begun.set()
        text += getattr(event, "text", "")
    return text


async def test_sigterm_lets_calls_end_and_exits_with_0(entry: StageProcess) -> None:
    async with AsyncOmniClient(f"127.0.0.1:{entry.ports['thinker']['grpc']}") as client:
        begun = [asyncio.Event() for _ in range(8)]
        running = [asyncio.create_task(collect_text(client, event)) for event in begun]
        await asyncio.wait_for(asyncio.gather(*(event.wait() for event in begun)), PATIENCE_S)
        entry.send(signal.SIGTERM)
        texts = await asyncio.gather(*running)
    assert texts == [WORD * WORDS] * 8
    assert await asyncio.to_thread(entry.wait, PATIENCE_S) == 0


async def test_a_second_sigterm_aborts(entry: StageProcess) -> None:
    async with AsyncOmniClient(f"127.0.0.1:{entry.ports['thinker']['grpc']}") as client:
        begun = asyncio.Event()
        running = asyncio.create_task(collect_text(client, begun, MANY))
        await asyncio.wait_for(begun.wait(), PATIENCE_S)
        entry.send(signal.SIGTERM)
        # Two pending signals of the same kind are delivered as one, so the first must have been handled.
        await asyncio.to_thread(wait_until_draining, entry)
        entry.send(signal.SIGTERM)
        with pytest.raises(OmniRequestError) as caught:
            await running
    assert (caught.value.code.name, caught.value.reason) == ("UNAVAILABLE", "DRAINING")
    assert await asyncio.to_thread(entry.wait, PATIENCE_S) == 143


def wait_until_draining(entry: StageProcess) -> None:
    wait_until(lambda: entry.health("thinker", "readiness") == "NOT_SERVING", why=lambda: "SIGTERM had no effect")
