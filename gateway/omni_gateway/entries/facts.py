"""An entry stage's description of itself and of its pipeline. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass

from omni_gateway.entries.pipelines import ServedPipeline
from omni_proto.stage.v1 import sampling_pb2
from omni_proto.stage.v1.stage_service_pb2 import GetStageResponse


@dataclass(frozen=True, slots=True)
class EntryFacts:
    """An entry stage's description of itself and of its pipeline."""

    stage: str
    """Name of the entry stage."""
    stages: tuple[str, ...]
    modalities: tuple[str, ...]
    """The modalities that the pipeline returns: "text", "audio" or both."""
    voices: tuple[str, ...]
    """Names of the voices, the default first; empty if the pipeline does not speak."""
    max_model_len: int
    speaks_given_text: bool
    """Whether a request may give the text to speak."""
    structures_text: bool
    """Whether a request may set the form of the text (structured output)."""
    calls_tools: bool
    """Whether a request may offer tools."""
    random_weights: bool = False
    """Whether the checkpoint is a tiny one with random weights, whose answers mean nothing."""

    @property
    def reads_aloud(self) -> bool:
        """Whether the pipeline is a model of /v1/audio/speech."""
        return "audio" in self.modalities and self.speaks_given_text


def read_facts(answer: GetStageResponse, pipeline: ServedPipeline) -> EntryFacts:
    """Returns the facts from the stage's answer. Modalities and voices that `pipeline` sets take precedence."""
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
        random_weights=answer.random_weights,
    )
