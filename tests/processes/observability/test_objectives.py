"""The operator's percentiles are those of Prometheus, from the metrics that a stage's pods really export."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import yaml
from prometheus_client import CollectorRegistry, generate_latest

from omni_operator.scaling.decision import StageLoad
from omni_operator.scaling.objectives import find_objectives, quantile, sum_increases
from omni_operator.scaling.readings import Reading, load_between, parse_reading
from omni_proto.pipeline.types.scaling import Objectives
from omni_proto.pod_contract import StageMetric
from omni_proto.stage_config import StageConfig
from omni_stage.service.metering import SECONDS as BOUNDS, AnswerMeter, StageMetrics
from support.peers.prometheus import run_promtool

FIRST = StageMetric.PIPELINE_FIRST_AUDIO_SECONDS
MINUTES = 6
ENTRY = {"pipeline": "p", "stage": "thinker", "component": "qwen2_5_omni/thinker", "model": {"path": "/model"}}


def test_percentiles_are_those_of_prometheus(tmp_path: Path) -> None:
    """histogram_quantile over the increases of two pods, for four percentiles and three shapes of histograms."""
    draw = random.Random(5)
    series: list[dict[str, str]] = []
    checks: list[dict[str, Any]] = []
    for shape, counts in enumerate(([5] * len(BOUNDS), [0, 0, 0, 90] + [0] * 13, [draw.randrange(9) for _ in BOUNDS])):
        pairs = []
        for pod in range(2):
            steps, total = {}, 0
            for bound, count in zip([*BOUNDS, math.inf], [*counts, pod], strict=True):
                total += count + pod
                steps[float(bound)] = float(total)
                name = f'{FIRST}_bucket{{pod="{pod}", shape="{shape}", le="{"+Inf" if math.isinf(bound) else bound}"}}'
                series.append({"series": name, "values": f"7+{total}x{MINUTES}"})
            grown = {bound: 7.0 + MINUTES * step for bound, step in steps.items()}
            old = Reading(0.0, 0.0, 0.0, 1.0, {FIRST: dict.fromkeys(steps, 7.0)})
            pairs.append((old, Reading(360.0, 0.0, 0.0, 1.0, {FIRST: grown})))
        for percent in (50, 90, 95, 99):
            ours = quantile(percent / 100, sum_increases(pairs, FIRST))
            asked = f'sum by (le) (increase({FIRST}_bucket{{shape="{shape}"}}[5m]))'
            expression = f"abs(histogram_quantile({percent / 100}, {asked}) - {ours!r}) < bool 1e-9"
            checks.append({"expr": expression, "eval_time": "6m", "exp_samples": [{"labels": "{}", "value": 1}]})
    case = {
        "evaluation_interval": "1m",
        "tests": [{"interval": "1m", "input_series": series, "promql_expr_test": checks}],
    }
    path = tmp_path / "case.yaml"
    path.write_text(yaml.safe_dump(case))
    run_promtool("test", "rules", path)


def test_a_stage_s_own_page_is_read() -> None:
    """What StageMetrics exports is what the operator reads: load, first audio and continuity."""
    registry = CollectorRegistry()
    metrics = StageMetrics(StageConfig.model_validate(ENTRY), registry)
    metrics.engine_limit.set(16)
    assert metrics.entry is not None
    before = parse_reading(generate_latest(registry), 100.0)
    metrics.engine_running.read = lambda: 75.0
    metrics.engine_waiting.read = lambda: 30.0
    for number in range(20):
        metrics.entry.answered(AnswerMeter(first_audio_s=0.3, last_audio_s=1.0, audio_s=2.0, underruns=number % 2))
    for code in ("OK", "OK", "RESOURCE_EXHAUSTED"):
        metrics.request_ended(code, "", 1.0)
    metrics.in_flight.set(13)
    after = parse_reading(generate_latest(registry), 115.0)
    assert before is not None
    assert after is not None
    load = load_between([(before, after)], pods=2)
    assert load is not None
    assert load == StageLoad(10.0, 4.0, 16.0, arrivals=2.0, answered=2 / 15 * 2)
    found = find_objectives(Objectives(first_audio_seconds=0.2, continuity=0.9), [(before, after)])
    assert [(one.field, one.is_missed) for one in found] == [("firstAudioSeconds", True), ("continuity", True)]
    assert found[1].measured == 0.5


def test_other_pages_are_no_readings() -> None:
    for page in (
        b"",
        b"# HELP x\nx 1\n",
        b"omni_stage_engine_running_seconds_total NaN\n",
        b"omni_stage_engine_{{{ 1\n",
    ):
        assert parse_reading(page, 1.0) is None
