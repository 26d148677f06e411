"""The rows about stages in the dashboard of pipelines: each stage, its engine, and the data between stages."""

from __future__ import annotations

from tools.observability.grafana import Panel, Query, Row
from tools.observability.queries import BY_STAGE, QUANTILES, STAGES, quantile, rate

STAGE = "{{pipeline}}/{{stage}}"
"""Legend of a stage."""


def quantiles(histogram: str, selector: str, by: str, legend: str) -> list[Query]:
    """Returns a query for each quantile that the dashboards show."""
    return [Query(quantile(share, histogram, selector, by), f"{legend} p{share * 100:g}") for share in QUANTILES]


STAGES_ROW = Row(
    "Stages",
    [
        Panel(
            "Stages ready",
            [Query(f"sum by ({BY_STAGE}) (omni_stage_ready{{{STAGES}}})", STAGE)],
            "Pods that accept requests.",
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
            quantiles("omni_stage_request_seconds", STAGES, BY_STAGE, STAGE),
            "Time from Accepted (when the stage admitted the request) to the end of the stage's own work, including "
            "the wait for its input.",
            unit="s",
        ),
        Panel(
            "Time to first output",
            quantiles("omni_stage_first_output_seconds", STAGES, BY_STAGE, STAGE),
            "Time from Accepted to the engine's first output.",
            unit="s",
        ),
        Panel(
            "Errors by stage",
            [
                Query(
                    rate(f'omni_stage_requests_total{{{STAGES}, code!="OK"}}', f"{BY_STAGE}, code, reason"),
                    f"{STAGE} {{{{code}}}} {{{{reason}}}}",
                )
            ],
            "Calls of each stage that did not end OK, per second. A stage passes on errors of the stages downstream, "
            "so check the last stage of the graph first.",
            unit="reqps",
            stacked=True,
        ),
    ],
)

ENGINES_ROW = Row(
    "Engines",
    [
        Panel(
            "Queue",
            [
                Query(
                    f"sum by ({BY_STAGE}) "
                    f"(vllm:num_requests_waiting{{{STAGES}}} or omni_stage_waiting_requests{{{STAGES}}})",
                    STAGE,
                )
            ],
            "Requests that wait in the engine's scheduler, and requests over Stream edges that wait for KV cache.",
        ),
        Panel(
            "Time in the queue",
            quantiles("omni_stage_queue_seconds", STAGES, BY_STAGE, STAGE),
            "Time from the hand-over of a request to the engine until the engine's scheduler took the request.",
            unit="s",
        ),
        Panel(
            "Running",
            [Query(f"sum by ({BY_STAGE}) (vllm:num_requests_running{{{STAGES}}})", STAGE)],
            "Requests in the engine's batches.",
        ),
        Panel(
            "KV cache in use",
            [Query(f"max by ({BY_STAGE}) (vllm:kv_cache_usage_perc{{{STAGES}}})", STAGE)],
            "Share of the KV cache in use, in the pod with the highest share. Diffusion stages have no KV cache.",
            unit="percentunit",
            thresholds=[(0.9, "orange")],
        ),
        Panel(
            "Tokens",
            [
                Query(rate(f"vllm:generation_tokens_total{{{STAGES}}}", BY_STAGE), f"{STAGE} written"),
                Query(rate(f"vllm:prompt_tokens_total{{{STAGES}}}", BY_STAGE), f"{STAGE} read"),
            ],
            "Tokens per second that the engines generate (written) and prompt tokens that they process (read).",
        ),
        Panel(
            "Preemptions",
            [Query(rate(f"vllm:num_preemptions_total{{{STAGES}}}", BY_STAGE), STAGE)],
            "Requests per second that lost their KV cache and are computed again: the cache is too small for the load.",
        ),
        Panel(
            "Compiled code failed its check",
            [Query(f"max by ({BY_STAGE}) (omni_stage_compiled_check_failed{{{STAGES}}})", STAGE)],
            "1 if compiled code or CUDA graphs failed the check of a pod at start-up. The pod then serves without them "
            "and is slower.",
            thresholds=[(1, "orange")],
        ),
        Panel(
            "Kernels compiled while serving",
            [Query(f"max by ({BY_STAGE}) (omni_stage_kernels_compiled_total{{{STAGES}}})", STAGE)],
            "Kernels that a pod had to compile since it was ready. Its requests wait for about a second for each.",
            thresholds=[(1, "orange")],
        ),
    ],
)

EDGES_ROW = Row(
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
            "Bytes of tensor rows that each stage sends to the next stage, per second.",
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
            "Time until the transport accepted one chunk of tensors. It grows when the next stage reads slowly.",
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
            "Failed attempts per second, by gRPC code, including attempts whose retry succeeded.",
            unit="reqps",
            stacked=True,
        ),
        Panel(
            "Choices of the next stage's pod",
            [
                Query(
                    rate(f"omni_stage_downstream_choices_total{{{STAGES}}}", f"{BY_STAGE}, peer, reason"),
                    "{{pipeline}}: {{stage}} to {{peer}} {{reason}}",
                )
            ],
            "Calls per second, by the reason for their pod. by_name: one pod, or none is connected.",
            unit="reqps",
            stacked=True,
            width=12,
        ),
        Panel(
            "Ejected pods of the next stage",
            [
                Query(
                    rate(f"omni_stage_downstream_ejections_total{{{STAGES}}}", f"{BY_STAGE}, peer, reason"),
                    "{{pipeline}}: {{stage}} to {{peer}} {{reason}}",
                )
            ],
            "Ejections per second: a pod that fails or is much slower than its peers gets no calls for a while.",
            unit="cps",
            width=12,
        ),
        Panel(
            "In-flight bytes",
            [
                Query(f"sum by ({BY_STAGE}) (omni_stage_inflight_bytes{{{STAGES}}})", STAGE),
                Query(f"sum by ({BY_STAGE}) (omni_stage_inflight_limit_bytes{{{STAGES}}})", f"{STAGE} limit"),
            ],
            "Bytes that admitted requests have reserved for tensors and media, and the limit.",
            unit="bytes",
            width=12,
        ),
        Panel(
            "Memory",
            [
                Query(
                    f'sum by ({BY_STAGE}, pod) (process_resident_memory_bytes{{{STAGES}, stage!=""}})',
                    f"{STAGE} {{{{pod}}}}",
                )
            ],
            "Resident memory of the stage servers, without their engines' processes.",
            unit="bytes",
            width=12,
        ),
    ],
)

_DCGM_LABELS = ("exported_namespace", "exported_pod"), ("namespace", "pod")
"""Names of the labels with the pod that uses a GPU: without and with honorLabels in the exporter's ServiceMonitor."""


def _dcgm(metric: str) -> str:
    return " or ".join(f'{metric}{{{where}=~"$namespace", {pod}=~"($pipeline)-.+"}}' for where, pod in _DCGM_LABELS)


GPUS_ROW = Row(
    "GPUs (needs NVIDIA's DCGM exporter)",
    [
        Panel(
            "GPU busy",
            [Query(f"({_dcgm('DCGM_FI_DEV_GPU_UTIL')}) / 100", "{{exported_pod}}{{pod}} GPU {{gpu}}")],
            "Share of the time in which a GPU ran a kernel. High values do not mean that it is full.",
            unit="percentunit",
            width=12,
            only_with="DCGM exporter",
        ),
        Panel(
            "GPU memory",
            [Query(f"({_dcgm('DCGM_FI_DEV_FB_USED')}) * 1048576", "{{exported_pod}}{{pod}} GPU {{gpu}}")],
            "Memory in use. vLLM reserves its share at start, so this says little about the load.",
            unit="bytes",
            width=12,
            only_with="DCGM exporter",
        ),
    ],
)
