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
        summary="`by` External excludes `minReplicas`, `maxReplicas`, `targetRequests` and `behavior`",
        rule="!has(self.by) || self.by != 'External' || !(has(self.minReplicas) || has(self.maxReplicas) || "
        "has(self.targetRequests) || has(self.behavior))",
        words="by: External leaves the number to another autoscaler; set bounds and behavior there, and only by here",
        field=".by",
    ),
)
