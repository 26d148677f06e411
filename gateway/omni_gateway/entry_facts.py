"""What an entry stage says of itself and of its pipeline. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from omni_gateway.pipelines import ServedPipeline
from omni_proto.stage.v1 import sampling_pb2
from omni_proto.stage.v1.stage_service_pb2 import GetStageResponse


@dataclass(frozen=True, slots=True)
class EntryFacts:
    """What an entry stage says of itself and of its pipeline."""

    stage: str
    """Name of the entry stage."""
    stages: tuple[str, ...]
    modalities: tuple[str, ...]
    """"text" and "audio", as far as the pipeline returns them."""
    voices: tuple[str, ...]
    """The default first; empty if nothing speaks."""
    max_model_len: int
    speaks_given_text: bool
    """Whether a request may give the reply to speak."""
    structures_text: bool
    """Whether the form of the text can be asked for."""
    calls_tools: bool
    """Whether tools can be offered."""


def read_facts(answer: GetStageResponse, pipeline: ServedPipeline) -> EntryFacts:
    """Returns the facts from the stage's answer and the pipeline's own description. The description wins."""
    outputs = tuple(
        name
        for value, name in ((sampling_pb2.MODALITY_TEXT, "text"), (sampling_pb2.MODALITY_AUDIO, "audio"))
        if value in (answer.pipeline_outputs or answer.outputs)
    )
    return EntryFacts(
        stage=answer.stage,
        stages=tuple(answer.stages),
        modalities=pipeline.modalities or outputs,
        voices=pipeline.voices or tuple(answer.voices),
        max_model_len=answer.limits.max_model_len,
        speaks_given_text=answer.text.given_reply,
        structures_text=answer.text.structured_output,
        calls_tools=bool(answer.text.tool_call_parser),
    )
