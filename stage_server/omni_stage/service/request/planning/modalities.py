"""Decides which stages a request needs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from omni_proto.stage.v1 import sampling_pb2
from omni_proto.stage_config import DownstreamStage, Modality, StageConfig
from omni_stage.errors import InvalidRequestError

MAX_MODALITIES: Final = 16
"""Maximum number of modalities that a request may name, repetitions included."""
_FROM_PROTO: dict[int, Modality] = {
    sampling_pb2.MODALITY_TEXT: Modality.TEXT,
    sampling_pb2.MODALITY_AUDIO: Modality.AUDIO,
}
_TO_PROTO = {Modality.TEXT: sampling_pb2.MODALITY_TEXT, Modality.AUDIO: sampling_pb2.MODALITY_AUDIO}


@dataclass(frozen=True, slots=True)
class ModalityPlan:
    """What a request wants from this stage and from its downstream stages."""

    own: frozenset[Modality]
    """Modalities that this stage itself sends."""
    edges: tuple[DownstreamStage, ...]
    """Stages to call."""
    requested: frozenset[Modality]
    """All requested modalities, with defaults applied."""


def to_proto(modalities: Iterable[Modality]) -> list[sampling_pb2.Modality]:
    """Returns the protocol's numbers of modalities, sorted."""
    return sorted(_TO_PROTO[modality] for modality in modalities)


def declared(config: StageConfig) -> frozenset[Modality]:
    """Returns the modalities that this stage and its downstream stages declare."""
    return frozenset(config.outputs).union(*(edge.outputs for edge in config.downstream))


def plan_modalities(config: StageConfig, requested: Sequence[int]) -> ModalityPlan:
    """Decide which modalities this stage sends and which stages it calls. An empty list requests all declared ones.

    Raises InvalidRequestError for a modality that is unknown, or that neither this nor a downstream stage declares, and
    for more than MAX_MODALITIES.
    """
    if len(requested) > MAX_MODALITIES:
        raise InvalidRequestError(
            f"a request names at most {MAX_MODALITIES} modalities, got {len(requested)}",
            field="start.modalities",
            limit=MAX_MODALITIES,
        )
    known = declared(config)
    wanted: set[Modality] = set()
    for index, number in enumerate(requested):
        modality = _FROM_PROTO.get(number)
        if modality is None or modality not in known:
            name = str(modality) if modality else f"number {number}"
            listed = ", ".join(sorted(known)) or "none"
            raise InvalidRequestError(
                f"modality {name} is not declared from stage {config.stage!r} on; declared: {listed}",
                field=f"start.modalities[{index}]",
                limit=listed,
            )
        wanted.add(modality)
    wanted = wanted or set(known)
    return ModalityPlan(
        own=frozenset(wanted.intersection(config.outputs)),
        edges=tuple(edge for edge in config.downstream if wanted.intersection(edge.outputs)),
        requested=frozenset(wanted),
    )
