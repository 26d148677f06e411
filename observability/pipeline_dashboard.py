"""The dashboard of pipelines: what callers see, then each stage, its engine, and what travels between stages."""

from __future__ import annotations

from observability.grafana import Dashboard, Panel, Query, Row, Variable
from observability.queries import BY_PIPELINE, BY_STAGE, FAULTS, QUANTILES, SELECTOR, STAGES, quantile, rate, ratio

_PIPELINE = "{{namespace}}/{{pipeline}}"
_STAGE = "{{pipeline}}/{{stage}}"


def _quantiles(histogram: str, selector: str, by: str, legend: str) -> list[Query]:
    return [Query(quantile(share, histogram, selector, by), f"{legend} p{share * 100:g}") for share in QUANTILES]


_CALLERS = Row(
    "What callers see",
    [
        Panel(
            "Requests",
            [Query(rate(f"omni_pipeline_requests_total{{{SELECTOR}}}", BY_PIPELINE), _PIPELINE)],
            "Requests that ended, a second.",
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
            "Requests that did not end OK, a second, by gRPC code and reason; docs/errors.md explains each.",
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
            "Share of requests that ended with a code that the pipeline answers for, not the caller.",
            unit="percentunit",
            thresholds=[(0.01, "orange"), (0.05, "red")],
        ),
        Panel(
            "Time of a request",
            _quantiles("omni_pipeline_request_seconds", SELECTOR, BY_PIPELINE, _PIPELINE),
            "Time from a request's start to its end, through all stages, for requests that ended with OK.",
            unit="s",
        ),
        Panel(
            "Time to first text",
            _quantiles("omni_pipeline_first_text_seconds", SELECTOR, BY_PIPELINE, _PIPELINE),
            "Time from a request's start to the first text for the client.",
            unit="s",
        ),
        Panel(
            "Requests in progress",
            [Query(f"sum by ({BY_STAGE}) (omni_stage_inflight_requests{{{STAGES}}})", _STAGE)],
            "Calls that each stage works on; a stage holds a call until the stages below it are done too.",
        ),
    ],
)

_SPEECH = Row(
    "Speech",
    [
        Panel(
            "Time to first audio",
            _quantiles("omni_pipeline_first_audio_seconds", SELECTOR, BY_PIPELINE, _PIPELINE),
            "Time from a request's start to the first audio for the client.",
            unit="s",
        ),
        Panel(
            "Real-time factor",
            _quantiles("omni_pipeline_real_time_factor_ratio", SELECTOR, BY_PIPELINE, _PIPELINE),
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
            "Share of the answers with audio in which a listener who plays from the first audio on never waits.",
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
            "Seconds that such listeners wait for more audio, for each second of audio.",
            unit="percentunit",
            thresholds=[(0.01, "orange"), (0.05, "red")],
        ),
        Panel(
            "Underruns",
            [Query(rate(f"omni_pipeline_audio_underruns_total{{{SELECTOR}}}", BY_PIPELINE), _PIPELINE)],
            "Times a second that such a listener runs out of audio for 20 ms or longer.",
            unit="ops",
        ),
    ],
)

_PER_STAGE = Row(
    "Stages",
    [
        Panel(
            "Stages ready",
            [Query(f"sum by ({BY_STAGE}) (omni_stage_ready{{{STAGES}}})", _STAGE)],
            "Pods that take requests.",
            kind="stat",
            width=8,
        ),
        Panel(
            "Pods",
            [
                Query(
                    f"omni_stage_info{{{STAGES}}} * on (job, instance) group_left ()"
                    f" omni_stage_engine_healthy{{{STAGES}}}",
                )
            ],
            "Every pod with its component and version; 1 while its engine is healthy.",
            kind="table",
            width=16,
        ),
        Panel(
            "Own work",
            _quantiles("omni_stage_request_seconds", STAGES, BY_STAGE, _STAGE),
            "From Accepted to the end of the stage's own work, with the wait for its input.",
            unit="s",
        ),
        Panel(
            "Time to first output",
            _quantiles("omni_stage_first_output_seconds", STAGES, BY_STAGE, _STAGE),
            "Time from Accepted to the engine's first output.",
            unit="s",
        ),
        Panel(
            "Errors by stage",
            [
                Query(
                    rate(f'omni_stage_requests_total{{{STAGES}, code!="OK"}}', f"{BY_STAGE}, code, reason"),
                    f"{_STAGE} {{{{code}}}} {{{{reason}}}}",
                )
            ],
            "Calls of each stage that did not end OK. A stage passes the errors of stages below on: the lowest began.",
            unit="reqps",
            stacked=True,
        ),
    ],
)

_ENGINES = Row(
    "Engines",
    [
        Panel(
            "Queue",
            [Query(f"sum by ({BY_STAGE}) (vllm:num_requests_waiting{{{STAGES}}})", _STAGE)],
            "Requests that wait in the engine's scheduler.",
        ),
        Panel(
            "Time in the queue",
            _quantiles("omni_stage_queue_seconds", STAGES, BY_STAGE, _STAGE),
            "Time from handing a request to the engine until its scheduler took it.",
            unit="s",
        ),
        Panel(
            "Running",
            [Query(f"sum by ({BY_STAGE}) (vllm:num_requests_running{{{STAGES}}})", _STAGE)],
            "Requests in the engine's batches.",
        ),
        Panel(
            "KV cache in use",
            [Query(f"max by ({BY_STAGE}) (vllm:kv_cache_usage_perc{{{STAGES}}})", _STAGE)],
            "Share of the KV cache that is taken, of the fullest pod. A diffusion stage has none.",
            unit="percentunit",
            thresholds=[(0.9, "orange")],
        ),
        Panel(
            "Tokens",
            [
                Query(rate(f"vllm:generation_tokens_total{{{STAGES}}}", BY_STAGE), f"{_STAGE} written"),
                Query(rate(f"vllm:prompt_tokens_total{{{STAGES}}}", BY_STAGE), f"{_STAGE} read"),
            ],
            "Tokens that the engines read and write, a second.",
        ),
        Panel(
            "Preemptions",
            [Query(rate(f"vllm:num_preemptions_total{{{STAGES}}}", BY_STAGE), _STAGE)],
            "Requests per second that lost their KV cache and are computed again: the cache is too small for the load.",
        ),
        Panel(
            "Compiled code failed its check",
            [Query(f"max by ({BY_STAGE}) (omni_stage_compiled_check_failed{{{STAGES}}})", _STAGE)],
            "1 if a pod serves eager because compiled code or CUDA graphs failed the check at start-up: slower.",
            thresholds=[(1, "orange")],
        ),
    ],
)

_EDGES = Row(
    "Between stages",
    [
        Panel(
            "Edge throughput",
            [
                Query(
                    rate(f'omni_stage_edge_bytes_total{{{STAGES}, direction="sent"}}', f"{BY_STAGE}, peer"),
                    "{{pipeline}}: {{stage}} to {{peer}}",
                )
            ],
            "Tensor rows that stages send to the next.",
            unit="Bps",
        ),
        Panel(
            "Time to hand over a chunk",
            [
                Query(
                    quantile(share, "omni_stage_edge_chunk_seconds", STAGES, f"{BY_STAGE}, peer"),
                    f"{{{{pipeline}}}}: {{{{stage}}}} to {{{{peer}}}} p{share * 100:g}",
                )
                for share in QUANTILES
            ],
            "Until the transport took one tensor chunk; grows when the next stage reads slowly.",
            unit="s",
        ),
        Panel(
            "Failed calls to the next stage",
            [
                Query(
                    rate(f"omni_stage_downstream_errors_total{{{STAGES}}}", f"{BY_STAGE}, peer, code"),
                    "{{pipeline}}: {{stage}} to {{peer}} {{code}}",
                )
            ],
            "Failed attempts, by gRPC code; attempts whose retry succeeded count too.",
            unit="reqps",
            stacked=True,
        ),
        Panel(
            "In-flight bytes",
            [
                Query(f"sum by ({BY_STAGE}) (omni_stage_inflight_bytes{{{STAGES}}})", _STAGE),
                Query(f"sum by ({BY_STAGE}) (omni_stage_inflight_limit_bytes{{{STAGES}}})", f"{_STAGE} limit"),
            ],
            "What admitted requests have reserved for tensors and media, and what they may.",
            unit="bytes",
            width=12,
        ),
        Panel(
            "Memory",
            [
                Query(
                    f'sum by ({BY_STAGE}, pod) (process_resident_memory_bytes{{{STAGES}, stage!=""}})',
                    f"{_STAGE} {{{{pod}}}}",
                )
            ],
            "Resident memory of the stage servers, without their engines' processes.",
            unit="bytes",
            width=12,
        ),
    ],
)

PIPELINE_DASHBOARD = Dashboard(
    uid="omnipipeline-pipelines",
    title="omnipipeline / Pipelines",
    description="What callers of omni pipelines see, and what each stage does.",
    rows=[_CALLERS, _SPEECH, _PER_STAGE, _ENGINES, _EDGES],
    variables=[
        Variable("namespace", "label_values(omni_stage_info, namespace)"),
        Variable("pipeline", 'label_values(omni_stage_info{namespace=~"$namespace"}, pipeline)'),
        Variable("stage", f"label_values(omni_stage_info{{{SELECTOR}}}, stage)"),
    ],
)
