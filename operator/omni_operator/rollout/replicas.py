"""Decides how many pods each stage of a revision has. No other module does.

A stage with scaling has the number that its OmniStage holds, in every revision: so a new set starts at the size of the
old one. Until the OmniStage holds a number, it is that of the set that serves.

A pipeline whose stages have `minReplicas: 0` sleeps as a whole while the OmniStage of its entry holds 0: one number, so
that one write puts it to sleep or wakes it, whatever the OmniStages of the other stages hold.

There are two numbers for each stage. *goal* is the final number; availability and conditions are judged by it. *now* is
the number in the Deployment after this reconcile, a step towards the goal. A set is scaled down from the entry stage
downstream. Requests in flight still need the downstream stages, so a stage keeps its replicas until its upstream stage
has no pods.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

from omni_kube.objects import find_condition
from omni_operator.names import scale_target_name
from omni_operator.reasons import Reason
from omni_operator.state.live import LiveSet
from omni_operator.state.observed import Observed
from omni_proto.pipeline import OmniPipeline, Stage, order_stages
from omni_proto.pipeline.types.scaling import STAGE_KIND


class Fate(Enum):
    """What happens to a revision's set."""

    RUN = "run"
    """It serves, or will serve."""
    SUSPEND = "suspend"
    """Its pods end and no pod starts; every stage keeps a Deployment."""
    RETIRE = "retire"
    """Another revision serves, so this set is scaled down and pruned."""


@dataclass(frozen=True, slots=True)
class Replicas:
    """Replicas of a revision by stage, in the order of the graph."""

    goal: Mapping[str, int]
    now: Mapping[str, int]


def fate_of(pipeline: OmniPipeline) -> Fate:
    """Returns the fate that the spec requests for its own revision."""
    return Fate.SUSPEND if pipeline.spec.suspend else Fate.RUN


def decide_replicas(
    pipeline: OmniPipeline | None, live: LiveSet, fate: Fate, held: Mapping[str, int] = MappingProxyType({})
) -> Replicas:
    """Returns the replicas of a revision's stages. held: see read_held.

    pipeline is the spec of that revision, or None if the spec is lost: such a set cannot be built, so it keeps its
    replicas. It counts as complete only with every stage that it is known to have had.
    """
    if pipeline is None:
        as_is = {name: stage.replicas for name, stage in live.stages.items()}
        names = dict.fromkeys((*live.recorded, *as_is))
        return Replicas({name: max(live.recorded.get(name, 0), as_is.get(name, 0)) for name in names}, as_is)
    asked = ask_replicas(pipeline, held)
    sleeps = is_asleep(pipeline, held)
    if fate is Fate.RUN and not sleeps:
        return Replicas(asked, asked)
    none = dict.fromkeys(asked, 0)
    # These must not start pods: a stage without a Deployment gets one with 0 replicas.
    absent = none if fate is Fate.SUSPEND or sleeps else asked
    return Replicas(none, _drain(pipeline, live, absent))


def ask_replicas(pipeline: OmniPipeline, held: Mapping[str, int]) -> dict[str, int]:
    """Returns the number of pods that each stage shall have, in the order of the graph: the spec's, or the held one
    within the bounds of scaling; 0 while the pipeline sleeps."""
    sleeps = is_asleep(pipeline, held)
    return {stage.name: 0 if sleeps else _ask(stage, held) for stage in order_stages(pipeline)}


def can_sleep(pipeline: OmniPipeline) -> bool:
    """Returns whether the pipeline sleeps while nobody uses it: all its stages have `minReplicas: 0`."""
    return all(stage.scaling is not None and stage.scaling.min_replicas == 0 for stage in pipeline.spec.stages)


def is_asleep(pipeline: OmniPipeline, held: Mapping[str, int]) -> bool:
    """Returns whether the pipeline sleeps now."""
    return can_sleep(pipeline) and held.get(order_stages(pipeline)[0].name) == 0


def _ask(stage: Stage, held: Mapping[str, int]) -> int:
    scaling = stage.scaling
    if scaling is None:
        return 1 if stage.replicas is None else stage.replicas
    least = max(1, scaling.min_replicas or 1)
    number = held.get(stage.name, least)
    return number if scaling.by == "External" else max(least, min(number, scaling.max_replicas or number))


def read_held(pipeline: OmniPipeline, observed: Observed, serving: LiveSet | None) -> dict[str, int]:
    """Returns the numbers of pods that stages with scaling have: those in the OmniStages, else those of the set that
    serves.

    While the pipeline sleeps, the others are 0: neither a deleted OmniStage nor a new name of a stage wakes it. Without
    OmniStages nothing could wake it later, so it does not sleep.
    """
    live = {} if serving is None else {name: stage.replicas for name, stage in serving.stages.items() if stage.replicas}
    slept = (find_condition(observed.pipeline, "Ready") or {}).get("reason") == Reason.SLEEPING
    if slept and observed.can_scale and can_sleep(pipeline):
        live = {stage.name: 0 for stage in pipeline.spec.stages}
    return live | {
        key.name.removeprefix(scale_target_name(observed.name, "")): int(child["spec"]["replicas"])
        for key, child in observed.children.items()
        if key.kind == STAGE_KIND and observed.owns(child) and "replicas" in (child.get("spec") or {})
    }


def first_replicas(pipeline: OmniPipeline) -> Mapping[str, int]:
    """Returns the replicas of a pipeline's own revision if none of its objects exist yet."""
    return decide_replicas(pipeline, LiveSet(""), fate_of(pipeline)).now


def _drain(pipeline: OmniPipeline, live: LiveSet, absent: Mapping[str, int]) -> dict[str, int]:
    """Returns the replicas of the next step towards zero. absent: replicas of stages that have no Deployment."""
    replicas: dict[str, int] = {}
    for stage in order_stages(pipeline):
        above = stage.inputs[0].source if stage.inputs else None
        ends = above is None or live.stage(above).empty
        present = live.stage(stage.name)
        as_is = present.replicas if present.deployment is not None else absent[stage.name]
        replicas[stage.name] = 0 if ends else as_is
    return replicas
