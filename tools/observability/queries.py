"""Makes pieces of PromQL that panels and alerts share. Pure functions."""

from __future__ import annotations

SELECTOR = 'namespace=~"$namespace", pipeline=~"$pipeline"'
STAGES = f'{SELECTOR}, stage=~"$stage"'
BY_PIPELINE = "namespace, pipeline"
BY_STAGE = "namespace, pipeline, stage"
BY_OPERATOR = "namespace, job"
"""Labels that identify an operator. Its pods, the leader and the standbys, have them in common."""
BY_GATEWAY = "namespace, job"
FAULTS = "UNAVAILABLE|DEADLINE_EXCEEDED|INTERNAL|UNKNOWN|DATA_LOSS|FAILED_PRECONDITION"
"""gRPC codes that count as the pipeline's fault. Other error codes count as the client's."""
REFUSALS = "RESOURCE_EXHAUSTED"
"""gRPC code of requests that are refused for lack of capacity. They are no faults: the remedy is more pods."""
PROBES = "/health|/ready|/metrics"
"""Routes of the gateway that no client calls."""
LEADS = "* on (job, instance) group_left () omni_operator_leader"
"""PromQL that multiplies a query by 1 for the leading operator and by 0 for standbys."""
QUANTILES = (0.5, 0.95, 0.99)


def rate(series: str, by: str = "", window: str = "$__rate_interval") -> str:
    """Returns PromQL for the sum of a series' per-second rates, grouped by the labels `by`."""
    grouped = f"sum by ({by})" if by else "sum"
    return f"{grouped} (rate({series}[{window}]))"


def quantile(share: float, histogram: str, selector: str, by: str, window: str = "$__rate_interval") -> str:
    """Returns PromQL for a quantile of a histogram's observations in the window."""
    chosen = f"{{{selector}}}" if selector else ""
    return f"histogram_quantile({share:g}, {rate(f'{histogram}_bucket{chosen}', f'le, {by}', window)})"


def ratio(part: str, whole: str) -> str:
    """Returns PromQL for part / whole, which has no value where the whole is 0."""
    return f"{part} / ({whole} > 0)"


def enough(series: str, by: str, window: str, least: int) -> str:
    """Returns PromQL that has a value where a counter grew by at least that much: the traffic floor of an alert."""
    return f"sum by ({by}) (increase({series}[{window}])) >= {least}"


def of_pipeline(series: str) -> str:
    """Returns PromQL for an operator's series about pipelines, whose label `namespace` is then the pipeline's."""
    return f'label_replace({series}, "namespace", "$1", "pipeline_namespace", "(.+)")'
