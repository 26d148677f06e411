"""How the pods of a stage follow its load, what clients are promised, and OmniStage, the scale target of a stage.

`minReplicas`, `maxReplicas` and `behavior` have the names and the meaning of a HorizontalPodAutoscaler's
(https://kubernetes.io/docs/tasks/run-application/horizontal-pod-autoscale/).
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field, StringConstraints

from omni_proto.pipeline.types.status import Count
from omni_proto.stage_config import ConfigModel

MAX_REPLICAS: Final = 1000
"""Maximum number of pods of a stage."""
STAGE_KIND: Final = "OmniStage"
IDLE_SECONDS: Final = 300
"""Default of `idleSeconds`, as KEDA's cooldownPeriod."""

Replicas = Annotated[int, Field(ge=0, le=MAX_REPLICAS)]
"""A number of pods."""


class ScalingPolicy(ConfigModel):
    """How far the number of pods may move within a time."""

    type: Literal["Pods", "Percent"]
    """Whether value counts pods, or is a percentage of the pods at the start of the period."""
    value: Annotated[int, Field(ge=1, le=10_000)]
    """Number of pods, or percentage."""
    period_seconds: Annotated[int, Field(ge=1, le=1800)]
    """Length of the period in seconds."""


class ScalingRules(ConfigModel):
    """How fast the number of pods may move in one direction."""

    stabilization_window_seconds: Annotated[int, Field(ge=0, le=3600)] | None = None
    """Seconds for which the most careful of the recent recommendations applies. Default: 0 up, 300 down."""
    select_policy: Literal["Max", "Min", "Disabled"] = "Max"
    """Which policy applies: the one that allows most, the one that allows least, or none, so that the number never
    moves in this direction."""
    policies: Annotated[list[ScalingPolicy], Field(max_length=8)] = Field(default_factory=list)
    """How far the number may move. Default up: by 4 pods or 100 % in 15 s, whichever is more. Default down: without a
    limit."""


class ScalingBehavior(ConfigModel):
    """How fast the number of pods may move."""

    scale_up: ScalingRules = ScalingRules()
    """How fast pods are added."""
    scale_down: ScalingRules = ScalingRules()
    """How fast pods are removed."""


class Scaling(ConfigModel):
    """How many pods a stage has, where that number is not fixed by replicas."""

    by: Literal["Operator", "External"] = "Operator"
    """Operator: the operator follows the load that the pods report. External: the number is what the stage's OmniStage
    says, which kubectl scale, a HorizontalPodAutoscaler or KEDA sets; the operator never changes it."""
    min_replicas: Replicas | None = None
    """Smallest number of pods. Default: 1. 0 in every stage: the pipeline sleeps while nobody uses it, without any pod,
    and a request to a gateway wakes it. A pipeline that is awake has at least 1 pod of each stage."""
    max_replicas: Annotated[int, Field(ge=1, le=MAX_REPLICAS)] | None = None
    """Largest number of pods. Required, unless the number is set from outside."""
    idle_seconds: Annotated[int, Field(ge=15, le=604_800)] | None = None
    """Seconds without any request before the pipeline sleeps, if minReplicas is 0. The longest of its stages counts.
    Default: 300."""
    target_requests: Annotated[float, Field(gt=0, le=4096)] | None = None
    """Requests in a pod's engine, running and waiting, at which the stage has the right number of pods. Default: 70 %
    of those that the engine runs at once (engineArgs.maxNumSeqs)."""
    behavior: ScalingBehavior = ScalingBehavior()
    """How fast the number of pods may move."""


class Objectives(ConfigModel):
    """What the pipeline's clients are promised. The operator reports in the condition ObjectivesMet whether it is kept,
    and gives more pods to the stage that holds it back, if that stage has scaling."""

    first_audio_seconds: Annotated[float, Field(gt=0, le=3600)] | None = None
    """Longest time from a request's start to its first audio, in seconds."""
    first_text_seconds: Annotated[float, Field(gt=0, le=3600)] | None = None
    """Longest time from a request's start to its first text, in seconds."""
    real_time_factor: Annotated[float, Field(gt=0, le=100)] | None = None
    """Largest ratio of the time until the last audio to the audio's playing time."""
    continuity: Annotated[float, Field(gt=0, le=1)] | None = None
    """Smallest share of answers with audio that a listener hears without a gap."""
    percentile: Annotated[float, Field(ge=50, le=99.9)] = 95
    """Percentage of answers for which the three upper bounds hold."""
    window: Annotated[float, Field(ge=60, le=3600)] = 300
    """Time over which answers are counted, in seconds."""


class OmniStageSpec(ConfigModel):
    """The desired state."""

    replicas: Replicas | None = None
    """Number of pods. Before it is set, the stage keeps the number that it has."""


class OmniStageStatus(ConfigModel):
    """The state of the stage, as the operator last saw it."""

    replicas: Count | None = None
    """Number of pods of the revision that serves. During an update there are more than spec.replicas."""
    ready_replicas: Count | None = None
    """Number of those that accept requests."""
    selector: Annotated[str, StringConstraints(max_length=1024)] | None = None
    """Labels of those pods, for autoscalers."""


class OmniStage(ConfigModel):
    """The scale target of one stage of an OmniPipeline, under a name that no rollout changes: PIPELINE-STAGE. The
    operator makes one for each stage with scaling."""

    spec: OmniStageSpec = OmniStageSpec()
    """The desired state."""
    status: OmniStageStatus = OmniStageStatus()
    """The state of the stage, as the operator last saw it."""
