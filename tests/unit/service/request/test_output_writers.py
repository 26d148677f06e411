"""A new kind of output needs a writer in WRITERS, and no change of what runs a request."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from omni_proto.pipeline.components import ComponentFacts
from omni_proto.stage.v1 import events_pb2
from omni_stage.models.component import FinishReason, StageRequest, StageStep
from omni_stage.service.request import outputs
from omni_stage.service.request.planning.plan import RequestPlan
from support.stages import scripted_stages as lab


@dataclass
class ImageStep(StageStep):
    """A step of a component that writes images."""

    image: bytes = b""


class ImageWriter(outputs.OutputWriter):
    """Writes images. The protocol has no message for them, so an audio chunk carries each."""

    images = 0

    @classmethod
    def is_wanted(cls, plan: RequestPlan, facts: ComponentFacts) -> bool:
        return True

    async def write(self, step: StageStep) -> None:
        if isinstance(step, ImageStep):
            self.images += 1
            await self.responses.send(audio=events_pb2.AudioChunk(data=step.image))

    def add_usage(self, usage: events_pb2.Usage) -> None:
        usage.audio_samples = self.images


async def draw(request: StageRequest) -> AsyncIterator[StageStep]:
    yield StageStep(text="a cat", token_ids=[1], prompt_token_ids=[1])
    yield ImageStep(text="", image=b"pixels")
    yield StageStep(finish_reason=FinishReason.STOP)


async def test_a_writer_in_the_table_adds_a_modality(kit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs, "WRITERS", (*outputs.WRITERS, ImageWriter))
    stage = await kit.serve(draw)
    answer = await lab.ask(stage)
    assert answer.code.name == "OK"
    assert answer.text == "a cat"
    assert [chunk.data for chunk in answer.of("audio")] == [b"pixels"]
    assert answer.of("finished")[0].usage.audio_samples == 1
