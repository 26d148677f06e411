"""All metrics of stage servers and of the operator follow the rules of find_bad_metrics for help, unit and labels."""

from __future__ import annotations

import asyncio
import re
from contextlib import AsyncExitStack

import pytest
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.core import GaugeMetricFamily
from tools.observability.__main__ import ROOT
from tools.observability.reference import collect_gateway_metrics, collect_operator_metrics, collect_stage_metrics

from omni_operator.process.metrics import Metrics, Readings, condition_samples
from omni_stage.service.server.ports import MetricsServer
from support.peers.metric_rules import ACCEPT, find_bad_metrics, find_bad_units, parse_metrics, scrape, series_of
from support.stages import scripted_stages


async def test_a_stage_that_answers() -> None:
    """A stage's metrics follow the rules, and requests add no new series."""
    async with AsyncExitStack() as stack:
        stage = await scripted_stages.Kit(stack).serve()
        url = f"http://127.0.0.1:{stage.server.ports.metrics}/metrics"
        before = await asyncio.to_thread(scrape, url)
        for _ in range(3):
            await scripted_stages.ask(stage)
        after = await asyncio.to_thread(scrape, url)
        assert stage.metric("omni_pipeline_requests_total", code="OK", reason="") == 3
        assert stage.metric("omni_pipeline_request_seconds_count") == 3
        assert stage.metric("omni_pipeline_first_text_seconds_count") == 3
        assert stage.metric("omni_pipeline_first_audio_seconds_count") == 0
        assert stage.metric("omni_stage_engine_healthy") == 1
    assert find_bad_metrics(after) == []
    assert series_of(before) == series_of(after)


async def test_only_the_entry_times_the_first_audio() -> None:
    """Only the entry, from which the client gets the audio, measures the time to first audio."""
    async with AsyncExitStack() as stack:
        first, middle, last = await scripted_stages.Kit(stack).chain()
        await scripted_stages.ask(first)
        assert first.metric("omni_pipeline_first_audio_seconds_count") == 1
        assert first.metric("omni_pipeline_real_time_factor_ratio_count") == 1
        assert (first.metric("omni_pipeline_audio_seconds_total") or 0) > 0
        assert [stage.metric("omni_pipeline_request_seconds_count") for stage in (middle, last)] == [None, None]


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [(ACCEPT["Accept"], "application/openmetrics-text"), ("", "text/plain")],
    ids=["Prometheus", "curl"],
)
def test_the_operator(accept: str, content_type: str) -> None:
    """The operator's metrics follow the rules, in OpenMetrics and in the text format."""
    metrics = Metrics("1.2.3")
    metrics.count_call("get", "200", 0.02)
    samples = condition_samples({"metadata": {"namespace": "ns", "name": "p"}})
    metrics.add_readings(Readings(lambda: {"Pod": 1.0}, lambda: samples, lambda: 0, lambda: 0.0))
    body, answered = metrics.render(accept)
    assert answered.startswith(content_type)
    families = parse_metrics(body.decode(), answered)
    assert find_bad_metrics(families) == []
    names = {sample.name for family in families for sample in family.samples}
    assert {"omni_operator_reconcile_total", "omni_operator_info", "omni_operator_longest_due_seconds"} <= names


def test_what_the_reference_lists() -> None:
    """All metrics of the reference page follow the rules, and the unit that each declares is the one in its name."""
    families = [*collect_stage_metrics(), *collect_operator_metrics(), *collect_gateway_metrics()]
    assert find_bad_metrics(families) == []
    assert find_bad_units(families) == []


def test_every_documented_error_is_counted_from_the_start() -> None:
    rows = re.findall(r"^\| `([A-Z_]+)` \| ([A-Z_]+)", (ROOT / "docs" / "errors.md").read_text(), re.MULTILINE)
    (requests,) = (family for family in collect_stage_metrics() if family.name == "omni_stage_requests")
    counted = {(sample.labels["reason"], sample.labels["code"]) for sample in requests.samples}
    assert counted >= set(rows)
    assert all(sample.value == 0 for sample in requests.samples)


async def test_names_of_vllm_keep_their_colons() -> None:
    registry = CollectorRegistry()
    Gauge("vllm:num_requests_waiting", "Of vLLM.", registry=registry).set(7)
    server = MetricsServer(registry)
    try:
        port = await server.start("127.0.0.1", 0)
        families = await asyncio.to_thread(scrape, f"http://127.0.0.1:{port}/metrics")
    finally:
        await server.close()
    assert [sample.name for family in families for sample in family.samples] == ["vllm:num_requests_waiting"]


@pytest.mark.parametrize(
    ("family", "problem"),
    [
        (GaugeMetricFamily("omni_stage_x_requests", "", value=1), "no help"),
        (GaugeMetricFamily("omni_stage_size", "How large.", value=1), "neither of a unit"),
        (GaugeMetricFamily("omni_stage_x_requests", "How many.", labels=["request_id"]), "labels"),
    ],
    ids=["help", "no unit", "request id"],
)
def test_the_rules_catch(family: GaugeMetricFamily, problem: str) -> None:
    """A metric without help, without a unit in its name, or with an unbounded label breaks the rules."""
    if not family.samples:
        family.add_metric(["7"], 1)
    assert any(problem in found for found in find_bad_metrics([family]))


def test_the_rules_catch_an_undeclared_unit() -> None:
    """A metric named `..._seconds` that does not declare `seconds` as its unit breaks the rules."""
    family = GaugeMetricFamily("omni_stage_x_seconds", "How long.", value=1)
    assert find_bad_units([family]) == ["omni_stage_x_seconds: ''"]
