"""Which stages a request needs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from omni_proto.stage.v1 import sampling_pb2
from omni_proto.stage_config import DownstreamStage, Output, StageConfig
from omni_stage.errors import InvalidRequestError

_FROM_PROTO: dict[int, Output] = {sampling_pb2.MODALITY_TEXT: Output.TEXT, sampling_pb2.MODALITY_AUDIO: Output.AUDIO}
_TO_PROTO = {Output.TEXT: sampling_pb2.MODALITY_TEXT, Output.AUDIO: sampling_pb2.MODALITY_AUDIO}


@dataclass(frozen=True, slots=True)
class ModalityPlan:
    """What a request wants of this stage and of those below it."""

    own: frozenset[Output]
    """Modalities that this stage itself sends."""
    edges: tuple[DownstreamStage, ...]
    """Stages to call."""
    requested: frozenset[Output]
    """All that was asked for, defaults applied."""


def to_proto(outputs: Iterable[Output]) -> list[sampling_pb2.Modality]:
    """The enum values of modalities, sorted."""
    return sorted(_TO_PROTO[output] for output in outputs)


def plan_modalities(config: StageConfig, requested: Sequence[int]) -> ModalityPlan:
    """Decide which modalities this stage sends and which stages it calls; empty means all that is declared.

    Raises InvalidRequestError for a modality that is unknown, or that no stage from here on declares.
    """
    declared = set(config.outputs).union(*(edge.outputs for edge in config.downstream))
    wanted: set[Output] = set()
    for index, number in enumerate(requested):
        output = _FROM_PROTO.get(number)
        if output is None or output not in declared:
            name = str(output) if output else f"number {number}"
            listed = ", ".join(sorted(declared)) or "none"
            raise InvalidRequestError(
                f"modality {name} is not declared from stage {config.stage!r} on; declared: {listed}",
                field=f"start.modalities[{index}]",
                limit=listed,
            )
        wanted.add(output)
    wanted = wanted or declared
    return ModalityPlan(
        own=frozenset(wanted.intersection(config.outputs)),
        edges=tuple(edge for edge in config.downstream if wanted.intersection(edge.outputs)),
        requested=frozenset(wanted),
    )
