"""The dashboard of pipelines: what clients see, what is promised and what it costs, then the rows about stages."""

from __future__ import annotations

from tools.observability.grafana import Dashboard, Panel, Query, Row, Variable
from tools.observability.queries import (
    BY_PIPELINE,
    BY_STAGE,
    FAULTS,
    REFUSALS,
    SELECTOR,
    STAGES,
    quantile,
    rate,
    ratio,
)
from tools.observability.rules.pipelines import PAGE, allowed, missed
from tools.observability.stage_rows import EDGES_ROW, ENGINES_ROW, GPUS_ROW, STAGE, STAGES_ROW, quantiles

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


_PIPELINE = "{{namespace}}/{{pipeline}}"

_REQUESTS = f"omni_pipeline_requests_total{{{SELECTOR}}}"
_REVISIONS = f'count by ({BY_PIPELINE}, revision) (omni_stage_info{{{SELECTOR}, entry="true"}}'

_NEW_REVISION = f"{_REVISIONS}) unless {_REVISIONS} offset 2m)"


def _number(title: str, expr: str, description: str, unit: str, alert: str, *limits: float) -> Panel:
    """Returns a number of the first row; from the first limit on it is orange, from the second on red."""
    colours = tuple(zip(limits, ("orange", "red"), strict=False))
    return Panel(title, [Query(expr, _PIPELINE)], description, unit, "stat", 4, 4, thresholds=colours, alert=alert)


_GLANCE = Row(
    "At a glance",
    [
        _number(
            "Failed",
            ratio(
                rate(f'omni_pipeline_requests_total{{{SELECTOR}, code=~"{FAULTS}"}}', BY_PIPELINE),
                rate(_REQUESTS, BY_PIPELINE),
            ),
            "Share of requests that end with a code that counts as the pipeline's fault.",
            "percentunit",
            "OmniPipelineErrorRatioHigh",
            0.01,
            0.05,
        ),
        _number(
            "Refused",
            ratio(
                rate(f'omni_pipeline_requests_total{{{SELECTOR}, code="{REFUSALS}"}}', BY_PIPELINE),
                rate(_REQUESTS, BY_PIPELINE),
            ),
            "Share of requests that are refused for lack of capacity.",
            "percentunit",
            "OmniPipelineRefusesRequests",
            0.01,
            0.05,
        ),
        _number(
            "First audio, p95",
            quantile(0.95, "omni_pipeline_first_audio_seconds", SELECTOR, BY_PIPELINE),
            "One in twenty spoken answers begins later.",
            "s",
            "OmniPipelineFirstAudioSlow",
            3,
            10,
        ),
        _number(
            "With gaps",
            ratio(
                rate(f'omni_pipeline_spoken_answers_total{{{SELECTOR}, continuous="false"}}', BY_PIPELINE),
                rate(f"omni_pipeline_spoken_answers_total{{{SELECTOR}}}", BY_PIPELINE),
            ),
            "Share of spoken answers that fall silent before they end.",
            "percentunit",
            "OmniPipelineAudioInterrupted",
            0.01,
            0.05,
        ),
        _number(
            "Waiting",
            f"sum by ({BY_PIPELINE}) (vllm:num_requests_waiting{{{SELECTOR}}})",
            "Requests that wait in the engines' queues of all stages.",
            "short",
            "OmniStageQueueGrowing",
            10,
            50,
        ),
        _number(
            "KV cache in use",
            f"max by ({BY_PIPELINE}) (vllm:kv_cache_usage_perc{{{SELECTOR}}})",
            "Share of the KV cache in use, in the pod of all stages with the highest share.",
            "percentunit",
            "OmniStageQueueGrowing",
            0.9,
            0.98,
        ),
    ],
)

_CALLERS = Row(
    "What callers see",
    [
        Panel(
            "Requests",
            [Query(rate(f"omni_pipeline_requests_total{{{SELECTOR}}}", BY_PIPELINE), _PIPELINE)],
            "Requests that ended per second.",
            unit="reqps",
        ),
        Panel(
            "Errors",
            [
                Query(
                    rate(f'omni_pipeline_requests_total{{{SELECTOR}, code!="OK"}}', f"{BY_PIPELINE}, code, reason"),
                    f"{_PIPELINE} {{{{code}}}} {{{{reason}}}}",
                )
            ],
            "Requests per second that did not end OK, by gRPC code and reason; docs/errors.md explains each.",
            unit="reqps",
            stacked=True,
        ),
        Panel(
            "Error ratio",
            [
                Query(
                    ratio(
                        rate(f'omni_pipeline_requests_total{{{SELECTOR}, code=~"{FAULTS}"}}', BY_PIPELINE),
                        rate(f"omni_pipeline_requests_total{{{SELECTOR}}}", BY_PIPELINE),
                    ),
                    _PIPELINE,
                )
            ],
            "Share of requests that ended with a gRPC code that counts as the pipeline's fault, not the client's.",
            unit="percentunit",
            thresholds=[(0.01, "orange"), (0.05, "red")],
        ),
        Panel(
            "Time of a request",
            quantiles("omni_pipeline_request_seconds", SELECTOR, BY_PIPELINE, _PIPELINE),
            "Time from a request's start to its end, through all stages, for requests that ended with OK.",
            unit="s",
        ),
        Panel(
            "Time to first text",
            quantiles("omni_pipeline_first_text_seconds", SELECTOR, BY_PIPELINE, _PIPELINE),
            "Time from a request's start to the first text for the client.",
            unit="s",
        ),
        Panel(
            "Requests in progress",
            [Query(f"sum by ({BY_STAGE}) (omni_stage_inflight_requests{{{STAGES}}})", STAGE)],
            "Calls that each stage works on. A call counts until the stages downstream have completed it, too.",
        ),
    ],
)

_SPEECH = Row(
    "Speech",
    [
        Panel(
            "Time to first audio",
            quantiles("omni_pipeline_first_audio_seconds", SELECTOR, BY_PIPELINE, _PIPELINE),
            "Time from a request's start to the first audio for the client.",
            unit="s",
        ),
        Panel(
            "Real-time factor",
            quantiles("omni_pipeline_real_time_factor_ratio", SELECTOR, BY_PIPELINE, _PIPELINE),
            "Time until the last audio, divided by the audio's playing time. Above 1, clients wait for audio "
            "while they listen.",
            unit="short",
            thresholds=[(1, "red")],
        ),
        Panel(
            "Audio",
            [Query(rate(f"omni_pipeline_audio_seconds_total{{{SELECTOR}}}", BY_PIPELINE), _PIPELINE)],
            "Seconds of audio returned per second.",
            unit="short",
        ),
        Panel(
            "Continuity",
            [
                Query(
                    ratio(
                        rate(f'omni_pipeline_spoken_answers_total{{{SELECTOR}, continuous="true"}}', BY_PIPELINE),
                        rate(f"omni_pipeline_spoken_answers_total{{{SELECTOR}}}", BY_PIPELINE),
                    ),
                    _PIPELINE,
                )
            ],
            "Share of the spoken answers that play without a pause of more than 20 ms, if playback starts with the "
            "first audio.",
            unit="percentunit",
        ),
        Panel(
            "Silence",
            [
                Query(
                    ratio(
                        rate(f"omni_pipeline_audio_silence_seconds_total{{{SELECTOR}}}", BY_PIPELINE),
                        rate(f"omni_pipeline_audio_seconds_total{{{SELECTOR}}}", BY_PIPELINE),
                    ),
                    f"{_PIPELINE} silence",
                )
            ],
            "Seconds of pauses per second of audio, if playback starts with the first audio.",
            unit="percentunit",
            thresholds=[(0.01, "orange"), (0.05, "red")],
        ),
        Panel(
            "Underruns",
            [Query(rate(f"omni_pipeline_audio_underruns_total{{{SELECTOR}}}", BY_PIPELINE), _PIPELINE)],
            "Pauses of more than 20 ms, per second, if playback starts with the first audio.",
            unit="ops",
        ),
    ],
)

PIPELINE_DASHBOARD = Dashboard(
    uid="omnipipeline-pipelines",
    title="omnipipeline / Pipelines",
    description="What callers of omni pipelines see, and what each stage does.",
    rows=[_GLANCE, OBJECTIVES_ROW, _CALLERS, _SPEECH, STAGES_ROW, ENGINES_ROW, COST_ROW, EDGES_ROW, GPUS_ROW],
    annotations=[("Rollout", Query(_NEW_REVISION, f"{_PIPELINE} revision {{{{revision}}}}"))],
    variables=[
        Variable("namespace", "label_values(omni_stage_info, namespace)"),
        Variable("pipeline", 'label_values(omni_stage_info{namespace=~"$namespace"}, pipeline)'),
        Variable("stage", f"label_values(omni_stage_info{{{SELECTOR}}}, stage)"),
    ],
)
