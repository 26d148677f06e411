"""A client that disconnects while a message is written to it causes a cancellation, not an error of the stage."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
import torch

from omni_proto.pod_contract import StageMetric
from omni_stage.models.component import FinishReason, StageRequest, StageStep
from support.processes.polling import PATIENCE_S
from support.stages import scripted_stages as lab

ROUNDS, AT_ONCE = 20, 6


async def sing(request: StageRequest) -> AsyncIterator[StageStep]:
    for _ in range(2000):
        yield StageStep(audio=torch.zeros(2400))
        await asyncio.sleep(0)
    yield StageStep(audio=torch.zeros(2400), finish_reason=FinishReason.DIFFUSION_DONE)


async def test_a_caller_that_leaves_during_a_write_cancels_its_call(kit: Any, caplog: pytest.LogCaptureFixture) -> None:
    """gRPC often reports the failed write of a relayed message before the cancellation of the call."""
    stages = await kit.chain(token2wav=sing)

    async def leave_after(messages: int) -> None:
        call = stages[0].stub.Generate(iter([lab.start(), lab.END]), timeout=PATIENCE_S)
        async for _ in call:
            messages -= 1
            if not messages:
                break
        call.cancel()

    with caplog.at_level(logging.WARNING):
        for number in range(ROUNDS):
            await asyncio.gather(*(leave_after(2 + number + one) for one in range(AT_ONCE)))
        await stages[0].wait_for_metric(StageMetric.REQUESTS, ROUNDS * AT_ONCE, code="CANCELLED", reason="CANCELLED")
    assert [record.message for record in caplog.records] == []
    for stage in stages:
        assert stage.metric(StageMetric.REQUESTS, code="INTERNAL", reason="INTERNAL") == 0
