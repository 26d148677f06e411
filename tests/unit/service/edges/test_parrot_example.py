"""The cascade of examples/parrot: one stage streams text to another, which speaks each sentence as it is written."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_proto.pipeline import load_pipeline
from omni_proto.stage_config import EdgeMode
from omni_stage.models.component import StageRequest, StageStep
from support.processes.polling import until
from support.stages import scripted_stages as lab

EXAMPLE = Path(__file__).resolve().parents[4] / "examples" / "parrot"
SAID = "Polly wants a cracker, and then another one. Größe 你好! Is that all? "


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    from parrot import engines

    return engines


async def start(kit: Any, engines: Any, mode: EdgeMode, writer: Any = None) -> Any:
    voice = await kit.serve(
        build_engine=engines.Voice, stage="voice", outputs=["Audio"], input={"source": "writer", "mode": mode.value}
    )
    edge = kit.edge("voice", voice.target, ["voice"]).model_copy(update={"mode": mode})
    return await kit.serve(build_engine=writer or engines.Writer, stage="writer", downstream=[edge])


@pytest.mark.parametrize("mode", list(EdgeMode))
async def test_what_one_stage_writes_another_speaks(kit: Any, engines: Any, mode: EdgeMode) -> None:
    writer = await start(kit, engines, mode)
    answer = await lab.ask(writer, [lab.start(SAID), lab.END])
    assert answer.code.name == "OK", answer.message
    assert answer.text == SAID
    samples = sum(len(chunk.data) // 2 for chunk in answer.of("audio", "voice"))
    assert samples == len(SAID) * engines.LETTER_SAMPLES


async def test_the_first_clause_is_spoken_while_the_text_is_written(
    kit: Any, engines: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer waits for the voice: if the voice waited for the whole text, neither would go on."""
    spoken: list[str] = []

    def speak(text: str) -> Any:
        spoken.append(text)
        return np.zeros(10, np.float32)

    class Waiting(engines.Writer):  # type: ignore[misc]  # the class is known when the test runs
        async def run(self, request: StageRequest) -> AsyncGenerator[StageStep, None]:
            async for step in super().run(request):
                yield step
                if step.text == "and ":
                    await until(lambda: spoken)

    monkeypatch.setattr(engines, "speak", speak)
    writer = await start(kit, engines, EdgeMode.STREAM, Waiting)
    answer = await lab.ask(writer, [lab.start(SAID), lab.END])
    assert answer.code.name == "OK", answer.message
    assert [part.rstrip() for part in spoken] == [
        "Polly wants a cracker,",
        "and then another one.",
        "Größe 你好!",
        "Is that all?",
    ]


async def test_nothing_to_speak(kit: Any, engines: Any) -> None:
    writer = await start(kit, engines, EdgeMode.STREAM)
    answer = await lab.ask(writer, [lab.start("..."), lab.END])
    assert answer.code.name == "OK", answer.message
    assert not answer.of("audio")


def test_its_pipeline() -> None:
    assert [stage.name for stage in load_pipeline(EXAMPLE / "pipeline.yaml").spec.stages] == ["writer", "voice"]
