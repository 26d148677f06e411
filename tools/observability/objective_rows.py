"""The rows about what is promised and what it costs, in the dashboard of pipelines."""

from __future__ import annotations

from tools.observability.grafana import Panel, Query, Row
from tools.observability.queries import BY_PIPELINE, BY_STAGE, SELECTOR, STAGES, rate
from tools.observability.rules.burn_rates import PAGE, allowed, missed

_OBJECTIVE = "{{namespace}}/{{pipeline}} {{objective}}"
_CHOSEN = 'pipeline_namespace=~"$namespace", pipeline=~"$pipeline"'
_STAGE = "{{pipeline}}/{{stage}}"
_ONLY = "objectives"
_POD_SECONDS = f"omni_stage_pod_seconds_total{{{STAGES}}}"
_PODS = f"count by ({BY_STAGE}) (omni_stage_ready{{{STAGES}}})"

OBJECTIVES_ROW = Row(
    "Objectives (of pipelines with spec.objectives)",
    [
        Panel(
            "Answers that miss",
            [
                Query(missed("$__rate_interval", _CHOSEN), _OBJECTIVE),
                Query(allowed(), f"{_OBJECTIVE} allowed"),
            ],
            "Share of answers that miss an objective, and the share that may.",
            unit="percentunit",
            only_with=_ONLY,
            alert="OmniPipelineObjectiveBurnsFast",
        ),
        Panel(
            "Burn rate",
            [Query(f"{missed(burn.long)} / {allowed()}", f"{_OBJECTIVE} {burn.long}") for burn in PAGE],
            "Share of answers that miss, divided by the share that may. 1 uses up exactly what is allowed.",
            thresholds=[(1, "orange"), (PAGE[1].rate, "red")],
            only_with=_ONLY,
            alert="OmniPipelineObjectiveBurnsFast",
        ),
        Panel(
            "Budget left in 30 days",
            [Query(f"1 - {missed('30d', _CHOSEN)} / {allowed()}", _OBJECTIVE)],
            "Share of the allowed misses of the last 30 days that is left; below 0 the objective was missed.",
            unit="percentunit",
            kind="stat",
            only_with=_ONLY,
            alert="OmniPipelineObjectiveBurns",
        ),
    ],
)

COST_ROW = Row(
    "Cost",
    [
        Panel("Pods", [Query(_PODS, _STAGE)], "Pods of each stage that are scraped."),
        Panel(
            "Pod-hours",
            [Query(f"sum by ({BY_STAGE}) (increase({_POD_SECONDS}[$__range])) / 3600", _STAGE)],
            "Time of all pods of a stage together, in the range that the dashboard shows.",
            unit="h",
            kind="stat",
        ),
        Panel(
            "Utilisation",
            [
                Query(
                    f"{rate(f'omni_stage_engine_running_seconds_total{{{STAGES}}}', BY_STAGE)} / "
                    f"(sum by ({BY_STAGE}) (omni_stage_engine_limit_requests{{{STAGES}}}) > 0)",
                    _STAGE,
                )
            ],
            "Requests that the engines work on, divided by those that they can work on at once.",
            unit="percentunit",
        ),
        Panel(
            "Audio per pod-second",
            [
                Query(
                    f"{rate(f'omni_pipeline_audio_seconds_total{{{SELECTOR}}}', BY_PIPELINE)} "
                    f"/ on ({BY_PIPELINE}) group_right () {_PODS}",
                    _STAGE,
                )
            ],
            "Seconds of audio for each second of a stage's pods: per GPU-second where a pod has one GPU.",
        ),
    ],
)
