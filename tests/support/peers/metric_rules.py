"""Rules for metrics: all must have help text and known labels. Our own have further rules for names and types."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterable

from prometheus_client.core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families as text_families

from support.processes.polling import PATIENCE_S

ACCEPT = {
    "Accept": "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
}
OURS = ("omni_stage", "omni_pipeline", "omni_operator", "omni_gateway")
UNITS = ("seconds", "bytes", "ratio")
COUNTED = ("requests", "pipelines", "replicas", "sessions")
"""Last words in the names of gauges that count things."""
LABELS = {
    "omni_stage": {"code", "reason", "peer", "direction", "component", "version", "entry"},
    "omni_pipeline": {"code", "reason", "continuous"},
    "omni_operator": {
        *("result", "verb", "code", "watch", "ready", "version"),
        *("pipeline_namespace", "pipeline", "condition", "reason", "stage", "objective"),
    },
    "omni_gateway": {"route", "status", "kind", "code", "verb", "stage", "model", "key"},
}
OF_LIBRARIES = {
    *("engine", "model_name", "finished_reason", "reason", "source", "sleep_state", "position"),
    *("generation", "implementation", "major", "minor", "patchlevel", "version"),
}
"""Labels of vLLM's and the Python client's metrics. All their values come from configuration or fixed lists."""
MOST_SERIES = 300
"""Maximum number of series in one metric family. A histogram has about 20 for each set of labels."""
_ID = re.compile(r"[0-9a-f]{16,}|[0-9a-f]{8}-[0-9a-f]{4}-")


def scrape(url: str) -> list[Metric]:
    """Returns the metric families at a /metrics URL. Requests them as Prometheus does: OpenMetrics preferred."""
    with urllib.request.urlopen(urllib.request.Request(url, headers=ACCEPT), timeout=PATIENCE_S) as answer:  # noqa: S310 - ours
        return parse_metrics(answer.read().decode(), answer.headers["Content-Type"])


def parse_metrics(text: str, content_type: str) -> list[Metric]:
    """Returns the metric families of a text in OpenMetrics or the older text format."""
    is_openmetrics = content_type.startswith("application/openmetrics-text")
    return list(openmetrics_families(text) if is_openmetrics else text_families(text))


def find_bad_metrics(families: Iterable[Metric]) -> list[str]:
    """Returns the violations of the rules. Names, types and label values are checked only for our own metrics."""
    return [f"{family.name}: {problem}" for family in families for problem in _look(family)]


def find_bad_units(families: Iterable[Metric]) -> list[str]:
    """Returns our families whose declared unit is not the unit in their name. Needs OpenMetrics, which has units."""
    ours = [family for family in families if family.name.startswith(OURS)]
    units = {family.name: (family.name.rpartition("_")[2], family.unit) for family in ours}
    return [f"{name}: {unit!r}" for name, (last, unit) in units.items() if unit != (last if last in UNITS else "")]


def _look(family: Metric) -> list[str]:
    problems = []
    if not family.documentation.strip():
        problems.append("no help")
    if len(family.samples) > MOST_SERIES:
        problems.append(f"{len(family.samples)} series")
    prefix = next((prefix for prefix in OURS if family.name.startswith(prefix)), None)
    if prefix is not None:
        problems += _look_at_ours(family)
    if family.name == "vllm:cache_config_info":
        return problems  # a single series with the cache's whole configuration as labels
    allowed = LABELS[prefix] if prefix else OF_LIBRARIES
    for sample in family.samples:
        unknown = sample.labels.keys() - allowed - {"le"}
        if unknown:
            problems.append(f"labels {sorted(unknown)}")
        ids = [value for value in sample.labels.values() if _ID.search(value)]
        if ids and prefix is not None:
            problems.append(f"label values that look like ids: {ids}")
    return sorted(set(problems))


def _look_at_ours(family: Metric) -> list[str]:
    problems = []
    words = family.name.split("_")
    if not family.documentation.endswith("."):
        problems.append("help is no sentence")
    if family.type == "histogram" and words[-1] not in UNITS:
        problems.append("a histogram without a unit")
    measured = words[-1] in (*UNITS, *COUNTED, "info")
    if family.type == "gauge" and not measured and not family.documentation.startswith("1 "):
        problems.append("a gauge that is neither of a unit, nor a count, nor 1 or 0")
    if family.type not in ("gauge", "counter", "histogram", "info"):
        problems.append(f"of type {family.type}")
    return problems


def series_of(families: Iterable[Metric]) -> set[tuple[str, tuple[tuple[str, str], ...]]]:
    """Returns the name and labels of each sample."""
    return {(sample.name, tuple(sorted(sample.labels.items()))) for family in families for sample in family.samples}
