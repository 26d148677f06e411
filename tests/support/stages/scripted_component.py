"""A component that only describes a stage. Needs no torch."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from omni_proto.pipeline.components import ComponentFacts, EngineKind
from omni_proto.stage_config import Modality, SamplingDefaults
from omni_proto.tensors import TensorSchema
from omni_stage.models.component import EngineInput, MediaCost, StageRequest, StageStep
from omni_stage.models.manifest import describe

Script = Callable[[StageRequest], AsyncIterator[StageStep]]


@dataclass
class ScriptedComponent:
    """Describes a stage. Scripted engines never call `prepare`, `emitter` or `warmup_request`."""

    id: str = "test/stage"
    kind: EngineKind = EngineKind.AUTOREGRESSIVE
    outputs: tuple[Modality, ...] = (Modality.TEXT, Modality.AUDIO)
    media: tuple[str, ...] = ()
    input_schema: TensorSchema | None = None
    output_schema: TensorSchema | None = None
    default_sampling: SamplingDefaults = field(default_factory=lambda: SamplingDefaults(max_tokens=16))
    voices: Sequence[str] = ()
    sample_rate_hz: int = 24_000
    step_timeout_s: float = 30.0
    queue_timeout_s: float | None = None
    writes_text: bool = True
    rows_per_position: int = 1
    takes_reply: bool = False
    structures_text: bool = False
    takes_tools: bool = False
    times_words: bool = False

    audio_rate_hz: int = 16_000
    max_aspect_ratio: int = 200
    max_audio_samples: int = 300 * 16_000

    @property
    def facts(self) -> ComponentFacts:
        return describe(
            ComponentFacts(
                id=self.id,
                kind=self.kind,
                outputs=self.outputs,
                reads=self.input_schema.id if self.input_schema else None,
                publishes=self.output_schema.id if self.output_schema else None,
                streams_input=self.input_schema is not None,
                writes_text=self.writes_text,
                rows_per_position=self.rows_per_position,
                takes_reply=self.takes_reply,
                structures_text=self.structures_text,
                takes_tools=self.takes_tools,
                times_words=self.times_words,
                media=self.media,
                sample_rate_hz=self.sample_rate_hz,
                step_timeout_s=self.step_timeout_s,
                queue_timeout_s=self.queue_timeout_s,
            )
        )

    def image_cost(self, width: int, height: int) -> MediaCost:
        return MediaCost(0, width * height)

    def frame_size(self, width: int, height: int, frames: int) -> tuple[int, int]:
        return width, height

    def video_cost(self, width: int, height: int, frames: int) -> MediaCost:
        return MediaCost(0, width * height * frames)

    def audio_cost(self, samples: int) -> MediaCost:
        return MediaCost(0, samples)

    def engine_kwargs(self) -> dict[str, Any]:
        return {}

    def prepare(self, request: StageRequest) -> EngineInput:
        raise NotImplementedError

    def emitter(self, request: StageRequest, prepared: EngineInput) -> Any:
        raise NotImplementedError

    def warmup_request(self) -> StageRequest:
        raise NotImplementedError
