"""Two running stages joined by a Stream edge."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import torch

from omni_proto.stage_config import EdgeMode
from omni_stage.models.component import EdgeRows, EdgeStream, FinishReason, StageRequest, StageStep
from support.stages import scripted_stages as lab
from support.stages.streamed_pairs import Gates, Pair


@pytest.fixture
def start_pair(kit: Any) -> Callable[..., Any]:
    async def start(think: Any, *, take: int | None = None, fail: Exception | None = None, **talker: Any) -> Pair:
        """Starts both stages. The talker reads `take` rows (all if None) and then returns audio, or raises `fail`."""
        pair = Pair(None, None)
        gates = talker.pop("gates", Gates())

        async def talk(request: StageRequest) -> AsyncIterator[StageStep]:
            assert isinstance(request.source, EdgeStream)
            read = EdgeRows()
            while not read.ended and (take is None or len(pair.rows) < take):
                read = await request.source.read()
                pair.reads.append(read)
                for count, event in gates.talker_has.items():
                    if len(pair.rows) >= count:
                        event.set()
            if fail is not None:
                raise fail
            yield StageStep(audio=torch.zeros(10), finish_reason=FinishReason.STOP)

        talker_settings = {
            "stage": "talker",
            "outputs": ["Audio"],
            "input": {"source": "thinker", "mode": "Stream"},
            "component": lab.ScriptedComponent(input_schema=lab.EDGE_A),
            **talker,
        }
        pair.talker = await kit.serve(talk, **talker_settings)
        edge = kit.edge("talker", pair.talker.target, ["talker"]).model_copy(update={"mode": EdgeMode.STREAM})
        component = lab.ScriptedComponent(output_schema=lab.EDGE_A)
        pair.thinker = await kit.serve(think, downstream=[edge], component=component)
        return pair

    return start
