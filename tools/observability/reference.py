"""Renders the tables of docs/reference/metrics.md, from the metrics that the processes register and a list of
vLLM's."""

from __future__ import annotations

import re
from collections.abc import Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

from omni_gateway.telemetry import GatewayMetrics
from omni_operator.process.metrics import Metrics, Readings, condition_samples
from omni_proto.stage_config import StageConfig
from omni_stage.service.metering import StageMetrics
from omni_stage.service.server.tls import CertificateMetrics

_PREFIXES = ("omni_stage", "omni_pipeline", "omni_operator", "omni_gateway")
# vLLM has about fifty series. These are the ones that the dashboards and alerts use.
VLLM = {
    "vllm:num_requests_waiting": (
        "gauge",
        "Requests that wait in the engine's scheduler. Those that wait for rows of the upstream stage are not counted.",
    ),
    "vllm:num_requests_running": ("gauge", "Requests in the engine's batches."),
    "vllm:kv_cache_usage_perc": ("gauge", "Share of the KV cache that is in use, 0 to 1."),
    "vllm:prompt_tokens_total": ("counter", "Prompt tokens that the engine processed."),
    "vllm:generation_tokens_total": ("counter", "Tokens that the engine generated."),
    "vllm:num_preemptions_total": ("counter", "Requests that lost their KV cache to others and were computed again."),
}


def collect_stage_metrics() -> list[Metric]:
    """Returns the metric families of an entry stage and of a stage below it, each once."""
    edge = {"stage": "talker", "target": "127.0.0.1:1", "component": "qwen2_5_omni/talker", "stages": ["talker"]}
    common = {"pipeline": "p", "component": "qwen2_5_omni/thinker", "model": {"path": "/model"}}
    entry = {"stage": "thinker", **common, "downstream": [edge]}
    below = {"stage": "talker", **common, "input": {"source": "thinker"}}
    families: dict[str, Metric] = {}
    for data in (entry, below):
        registry = CollectorRegistry()
        StageMetrics(StageConfig.model_validate(data), registry)
        CertificateMetrics(registry)
        families |= {family.name: family for family in registry.collect() if family.name not in families}
    return list(families.values())


def collect_operator_metrics() -> list[Metric]:
    """Returns the metric families of an operator that knows one pipeline."""
    metrics = Metrics()
    metrics.count_call("get", "200", 0.02)
    samples = condition_samples({"metadata": {"namespace": "ns", "name": "p"}})
    metrics.add_readings(Readings(lambda: {"Pod": 1.0}, lambda: samples, lambda: 0, lambda: 0.0))
    return list(metrics.registry.collect())


def collect_gateway_metrics() -> list[Metric]:
    """Returns the metric families of a gateway with TLS that has answered one request of each kind."""
    metrics = GatewayMetrics()
    metrics.set_certificate_expiry(0.0)
    metrics.requests.labels("/v1/chat/completions", "200").inc()
    metrics.seconds.labels("/v1/chat/completions").observe(1.0)
    metrics.first_byte.labels("/v1/chat/completions", "audio").observe(1.0)
    metrics.refused.labels("rate_limit_exceeded").inc()
    metrics.broken.labels("internal_error").inc()
    metrics.responses.labels("completed").inc()
    metrics.count_cut("/v1/audio/speech", ["talker"])
    metrics.count_call("list", "200", 0.02)
    metrics.count_model_request("omni", "alice", 200)
    metrics.count_tokens("omni", "alice", {"prompt": 1})
    metrics.count_audio("omni", "alice", 1.0)
    return list(metrics.registry.collect())


def sample_name(family: Metric) -> str:
    """Returns the name that a query uses. The series of a histogram add _bucket, _sum or _count to it."""
    return str(family.name) + {"counter": "_total", "info": "_info"}.get(family.type, "")


def labels_of(family: Metric) -> list[str]:
    """Returns the label names of a family's series, without le."""
    return sorted({label for sample in family.samples for label in sample.labels} - {"le"})


def render_tables(families: Iterable[Metric]) -> str:
    """Returns a Markdown table of our metric families."""
    rows = [
        f"| `{sample_name(family)}` | {family.type} | {', '.join(f'`{label}`' for label in labels_of(family))} "
        f"| {family.documentation} |"
        for family in families
        if family.name.startswith(_PREFIXES)
    ]
    return "\n".join(["| metric | type | labels | what |", "|---|---|---|---|", *rows])


def render_vllm_table() -> str:
    """Returns a Markdown table of the vLLM metrics that dashboards and alerts use."""
    rows = [f"| `{name}` | {kind} | {what} |" for name, (kind, what) in VLLM.items()]
    return "\n".join(["| metric | type | what |", "|---|---|---|", *rows])


def fill_page(page: str, tables: dict[str, str]) -> str:
    """Returns the page with the text between `<!-- NAME -->` and `<!-- /NAME -->` replaced by the table of that name.
    Raises ValueError if the page has no such place."""
    for name, table in tables.items():
        between = re.compile(f"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        if not between.search(page):
            raise ValueError(f"the page has no <!-- {name} --> ... <!-- /{name} -->")
        page = between.sub(lambda found, table=table: f"{found[1]}\n{table}\n\n{found[2]}", page)
    return page
