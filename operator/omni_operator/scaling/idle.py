"""When a pipeline with `minReplicas: 0` falls asleep: pure functions over its pods and what they report.

Only what is known to be unused sleeps. Every pod of every stage must be ready, read in this pass and in the one before,
without a call in progress and without a moment of work in between; and nothing may be rolled out. A request that
arrives after the last reading is still served: the stages are scaled down from the entry, each after the one above it
has ended.

A request that a gateway holds counts without being asked for. It wakes the pipeline, the time without requests begins
only when all pods are ready again, and by then the gateway has sent it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from omni_kube.objects import Manifest, find_condition, is_terminating
from omni_operator.scaling.readings import Reading
from omni_operator.state.live import LiveSet, LiveStage
from omni_proto.pipeline import OmniPipeline
from omni_proto.pipeline.types.scaling import IDLE_SECONDS


def idle_seconds(pipeline: OmniPipeline) -> float:
    """Returns the seconds without requests before the pipeline sleeps."""
    return max(
        IDLE_SECONDS if stage.scaling is None or stage.scaling.idle_seconds is None else stage.scaling.idle_seconds
        for stage in pipeline.spec.stages
    )


def is_idle(
    stages: Iterable[str],
    live: LiveSet,
    others: Iterable[LiveSet],
    readings: Mapping[str, Sequence[Reading]],
    at: float,
) -> bool:
    """Returns whether nobody used the pipeline between the last two readings.

    live: the set that serves. others: the sets of other revisions. readings: of each pod, by its uid, the oldest first.
    at: when this pass began to read, in seconds of the readings' clock.
    """
    if any(not stage.empty for other in others for stage in other.stages.values()):
        return False
    return all(_is_unused(live.stage(name), readings, at) for name in stages)


def ready_pods(stage: LiveStage) -> dict[str, Manifest]:
    """Returns the pods that serve, by uid."""
    return {
        str(pod["metadata"]["uid"]): pod
        for pod in stage.pods
        if not is_terminating(pod) and (find_condition(pod, "Ready") or {}).get("status") == "True"
    }


def _is_unused(stage: LiveStage, readings: Mapping[str, Sequence[Reading]], at: float) -> bool:
    ready = ready_pods(stage)
    return bool(ready) and len(ready) == len(stage.pods) and all(_is_quiet(readings.get(uid, ()), at) for uid in ready)


def _is_quiet(rows: Sequence[Reading], at: float) -> bool:
    if len(rows) < 2 or rows[-1].at < at:
        return False
    before, after = rows[-2:]
    return after.in_flight == 0 and (after.ran_s, after.waited_s) == (before.ran_s, before.waited_s)
