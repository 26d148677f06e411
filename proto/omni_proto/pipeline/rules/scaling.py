"""Rules on the number of a stage's pods, in CEL."""

from __future__ import annotations

from typing import Final

from omni_proto.pipeline.rules.rule import Rule

REPLICAS_RULE: Final = Rule(
    summary="`scaling` excludes `replicas`",
    rule="!(has(self.replicas) && has(self.scaling))",
    words="stage %s has replicas and scaling; keep one (an object that was stored without scaling has replicas: 1; set "
    "it to null)",
    values=("self.name",),
    field=".scaling",
)

OBJECTIVES_RULE: Final = Rule(
    summary="one of `firstAudioSeconds`, `firstTextSeconds`, `realTimeFactor` and `continuity` is set",
    rule="has(self.firstAudioSeconds) || has(self.firstTextSeconds) || has(self.realTimeFactor) || "
    "has(self.continuity)",
    words="nothing is promised; set firstAudioSeconds, firstTextSeconds, realTimeFactor or continuity",
)

_MAY_BE_ZERO = "has(s.scaling) && has(s.scaling.minReplicas) && s.scaling.minReplicas == 0"

ZERO_RULE: Final = Rule(
    summary="`minReplicas: 0` is set in every stage, or in none",
    rule=f"!self.stages.exists(s, {_MAY_BE_ZERO}) || self.stages.all(s, {_MAY_BE_ZERO})",
    words="a pipeline sleeps as a whole, because a request passes all stages; minReplicas is 0, but not in %s: set it "
    "there, or to 1 or more everywhere",
    values=(f"self.stages.filter(s, !({_MAY_BE_ZERO})).map(s, s.name)",),
    field=".stages",
)

SCALING_RULES: Final = (
    Rule(
        summary="`maxReplicas` is set, unless `by` is External",
        rule="(has(self.by) && self.by == 'External') || has(self.maxReplicas)",
        words="maxReplicas is missing; set the largest number of pods",
        field=".maxReplicas",
    ),
    Rule(
        summary="`minReplicas` is at most `maxReplicas`",
        rule="!has(self.minReplicas) || !has(self.maxReplicas) || self.minReplicas <= self.maxReplicas",
        words="minReplicas (%d) is above maxReplicas (%d); lower it",
        values=("self.minReplicas", "self.maxReplicas"),
        field=".minReplicas",
    ),
    Rule(
        summary="`idleSeconds` needs `minReplicas: 0`",
        rule="!has(self.idleSeconds) || (has(self.minReplicas) && self.minReplicas == 0)",
        words="idleSeconds has no effect unless minReplicas is 0; set that in every stage, or remove idleSeconds",
        field=".idleSeconds",
    ),
    Rule(
        summary="`by` External excludes `minReplicas`, `maxReplicas`, `targetRequests` and `behavior`",
        rule="!has(self.by) || self.by != 'External' || !(has(self.minReplicas) || has(self.maxReplicas) || "
        "has(self.targetRequests) || has(self.behavior))",
        words="by: External leaves the number to another autoscaler; set bounds and behavior there, and only by here",
        field=".by",
    ),
)
