"""The OmniStages of a pipeline: the first number of pods of each, and their status. Pure functions.

The operator's own scaling writes later numbers (scaling/scaler.py); with `by: External`, only other clients do. When a
pipeline falls asleep or wakes, the other OmniStages follow that of the entry.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from omni_kube.objects import Manifest, value_at
from omni_operator.names import scale_target_name, stage_selector
from omni_operator.rollout.replicas import can_sleep
from omni_operator.rollout.rollout import Rollout
from omni_operator.state.live import LiveSet
from omni_operator.state.observed import Observed
from omni_proto.pipeline import OmniPipeline
from omni_proto.pipeline.types.scaling import STAGE_KIND


class TargetWrite(NamedTuple):
    """What an OmniStage lacks."""

    live: Manifest
    replicas: int | None
    """The number to set, if it holds none, or another one than a pipeline that sleeps or wakes."""
    status: Manifest | None
    """The status to write, if it differs."""


def plan_targets(pipeline: OmniPipeline, observed: Observed, rollout: Rollout) -> Iterator[TargetWrite]:
    """Yields the writes of the pipeline's OmniStages."""
    serving = rollout.sets.get(rollout.serving) or LiveSet(rollout.serving)
    may_sleep = can_sleep(pipeline)
    for stage in pipeline.spec.stages:
        live = observed.child(STAGE_KIND, scale_target_name(observed.name, stage.name))
        if stage.scaling is None or live is None or not observed.owns(live) or "deletionTimestamp" in live["metadata"]:
            continue
        pods = serving.stage(stage.name)
        selector = stage_selector(observed.name, stage.name, rollout.serving)
        status = {
            "replicas": int(value_at(pods.deployment, "status", "replicas", default=0)),
            "readyReplicas": pods.ready,
            "selector": ",".join(f"{key}={value}" for key, value in selector.items()),
        }
        asked, held = rollout.asked[stage.name], value_at(live, "spec", "replicas", default=None)
        follows = may_sleep and held != asked and 0 in (held, asked)
        first = asked if held is None or follows else None
        wrong = status if (live.get("status") or {}) != status else None
        if first is not None or wrong is not None:
            yield TargetWrite(live, first, wrong)
