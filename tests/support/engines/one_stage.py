"""A stage alone: its configuration, its engine from start to shutdown, and the steps of one request."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

from omni_proto.stage_config import EngineArgs, Modality, ModelSource, StageConfig
from omni_stage.engine.factory import build_stage_engine
from omni_stage.engine.protocol import StageEngine
from omni_stage.models.component import StageRequest, StageStep

OUTPUTS = {"generic/llm": Modality.TEXT, "asr/whisper": Modality.TRANSCRIPT}


def configure(component: str, checkpoint: Path, **engine_args: Any) -> StageConfig:
    """Returns the configuration of a stage in float32 with no stage before or after it."""
    return StageConfig(
        pipeline="alone",
        stage=component.rpartition("/")[2],
        component=component,
        model=ModelSource(path=str(checkpoint)),
        outputs=[OUTPUTS[component]],
        engine_args=EngineArgs(**{"dtype": "float32", **engine_args}),
    )


@asynccontextmanager
async def running(config: StageConfig, *, in_process: bool = True) -> AsyncIterator[StageEngine]:
    """Yields the started engine of a stage. `in_process`: in this process instead of a process of its own."""
    engine = build_stage_engine(config, in_process=in_process)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.shutdown()


async def collect(engine: StageEngine, request: StageRequest) -> list[StageStep]:
    """Returns all steps of one request."""
    async with aclosing(engine.generate(request)) as steps:
        return [step async for step in steps]


def token_ids(steps: Sequence[StageStep]) -> list[int]:
    """Returns the tokens of all steps."""
    return [token for step in steps for token in step.token_ids]
