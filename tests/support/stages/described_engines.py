"""Engine arguments for a component whose facts a test chooses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from omni_proto.pipeline.components import ComponentFacts, EngineKind
from omni_proto.stage_config import EngineArgs, InputEdge, Limits, ModelSource, StageConfig, Timeouts
from omni_stage.engine.arguments.engine_args import OmniEngineArgs, build_engine_args
from omni_stage.models.component import Component
from omni_stage.models.manifest import describe


@dataclass
class Described:
    """The part of a Component from which engine arguments are built."""

    kwargs: Mapping[str, Any] = field(default_factory=dict)
    kind: EngineKind = EngineKind.AUTOREGRESSIVE
    id: str = "test/described"
    queue_timeout_s: float | None = None
    takes_prompt_embeds: bool = False
    reuses_rows: bool = False
    reads: str | None = None
    media: tuple[str, ...] = ()

    @property
    def facts(self) -> ComponentFacts:
        return describe(
            ComponentFacts(
                id=self.id,
                kind=self.kind,
                reads=self.reads,
                publishes="test/rows",
                queue_timeout_s=self.queue_timeout_s,
                media=self.media,
            ),
            publishes_rows=not self.kind.is_one_shot,
            reuses_rows=self.reuses_rows,
            takes_prompt_embeds=self.takes_prompt_embeds,
        )

    def engine_kwargs(self) -> dict[str, Any]:
        return dict(self.kwargs)


CAPTURING = {"additional_config": {"omni": {"capture_rows": True}}}
KEEPING = {"additional_config": {"omni": {"capture_rows": True, "rows_cache_bytes": 7}}}
HASHING = {"additional_config": {"omni": {"capture_rows": True, "hash_inputs": True}}}


def build(
    user: EngineArgs | None = None,
    *,
    on_cpu: bool = True,
    gpus: int = 1,
    timeouts: Timeouts | None = None,
    source: str | None = None,
    limits: Limits | None = None,
    **described: Any,
) -> OmniEngineArgs:
    config = StageConfig(
        pipeline="p",
        stage="s",
        component="test/described",
        model=ModelSource(path="/models/m"),
        engine_args=user or EngineArgs(),
        tensor_parallel_size=gpus,
        timeouts=timeouts or Timeouts(),
        input=InputEdge(source=source) if source else None,
        limits=limits or Limits(),
    )
    component = Described(**described, reads="test/tensors" if source else None)
    return build_engine_args(config, cast(Component, component), on_cpu=on_cpu)
