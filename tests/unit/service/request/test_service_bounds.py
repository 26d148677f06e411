"""Time limits of a call that sends no Start, and of a call whose deadline exceeds the stage's longest request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from support.processes.polling import PATIENCE_S
from support.stages import scripted_stages as lab


async def test_a_call_without_start_holds_no_place_for_long(kit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omni_stage.service.request.reading.START_TIMEOUT_S", 0.3)
    stage = await kit.serve()

    async def nothing() -> AsyncIterator[Any]:
        await asyncio.Event().wait()
        yield

    answer = await lab.collect(stage.stub.Generate(nothing(), timeout=PATIENCE_S))
    assert (answer.code, answer.info.reason) == (grpc.StatusCode.DEADLINE_EXCEEDED, "DEADLINE_EXCEEDED")
    assert answer.info.metadata["field"] == "start"
    assert len(stage.server.in_flight) == 0


async def test_no_deadline_outlives_the_longest_request(kit: Any) -> None:
    stage = await kit.serve(lab.wait_forever, timeouts={"request": 3.0})
    answer = await lab.ask(stage, timeout_s=1e6)
    assert (answer.code, answer.info.reason) == (grpc.StatusCode.DEADLINE_EXCEEDED, "DEADLINE_EXCEEDED")
    assert len(stage.engine.aborted) == 1
