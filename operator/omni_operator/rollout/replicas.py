"""How many pods each stage of a revision has: the one place that decides it.

Two numbers for each stage. The *goal* is what it comes to: availability and conditions are judged by it. *Now* is what
its Deployment asks for in this reconcile, on the way there. A set ends from the entry downwards: requests in flight
still need the stages below, so a stage stays as it is until no pod of the one above is left.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from omni_operator.state.live import LiveSet
from omni_proto.pipeline import OmniPipeline, order_stages


class Fate(Enum):
    """What is to become of a revision's set."""

    RUN = "run"
    """It serves, or is to serve."""
    SUSPEND = "suspend"
    """Its pods end and none starts; every stage keeps a Deployment."""
    RETIRE = "retire"
    """Another revision serves: it ends and is pruned."""


@dataclass(frozen=True, slots=True)
class Replicas:
    """Replicas of a revision by stage, in the order of the graph."""

    goal: Mapping[str, int]
    now: Mapping[str, int]


def fate_of(pipeline: OmniPipeline) -> Fate:
    """Returns what the spec asks for the revision that it makes."""
    return Fate.SUSPEND if pipeline.spec.suspend else Fate.RUN


def decide_replicas(pipeline: OmniPipeline | None, live: LiveSet, fate: Fate) -> Replicas:
    """Returns the replicas of a revision's stages.

    pipeline is the spec as that revision has it. None if it is lost: such a set cannot be built, and stays as it is.
    """
    if pipeline is None:
        as_is = {name: stage.replicas for name, stage in live.stages.items()}
        return Replicas(as_is, as_is)
    asked = {stage.name: stage.replicas for stage in order_stages(pipeline)}
    if fate is Fate.RUN:
        return Replicas(asked, asked)
    none = dict.fromkeys(asked, 0)
    # To suspend starts no pods either: a stage without a Deployment gets one without replicas.
    absent = none if fate is Fate.SUSPEND else asked
    return Replicas(none, _drain(pipeline, live, absent))


def first_replicas(pipeline: OmniPipeline) -> Mapping[str, int]:
    """Returns the replicas of a pipeline's own revision where nothing of it exists yet."""
    return decide_replicas(pipeline, LiveSet(""), fate_of(pipeline)).now


def _drain(pipeline: OmniPipeline, live: LiveSet, absent: Mapping[str, int]) -> dict[str, int]:
    """Returns the next step on the way to none. absent: replicas of stages that have no Deployment."""
    replicas: dict[str, int] = {}
    for stage in order_stages(pipeline):
        above = stage.inputs[0].source if stage.inputs else None
        ends = above is None or live.stage(above).empty
        present = live.stage(stage.name)
        as_is = present.replicas if present.deployment is not None else absent[stage.name]
        replicas[stage.name] = 0 if ends else as_is
    return replicas
