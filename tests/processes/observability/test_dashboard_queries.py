"""Queries of the dashboards over given series, computed by promtool."""

from __future__ import annotations

from pathlib import Path

import yaml
from tools.observability.operator_dashboard import OPERATOR_DASHBOARD

from support.peers.prometheus import panel_queries, run_promtool


def test_pipelines_of_all_operators_are_counted_once(tmp_path: Path) -> None:
    """Two operators serve different pipelines. The standby of the first reports the same pipelines as its leader."""
    (asked,) = [asked for asked in panel_queries(OPERATOR_DASHBOARD) if "omni_operator_pipelines" in asked.expr]
    pods = {("a", "omni-metrics", "leader"): 3, ("a", "omni-metrics", "standby"): 3, ("b", "omni-metrics", "other"): 5}
    series = 'omni_operator_pipelines{{ready="True", namespace="{}", job="{}", pod="{}"}}'
    test = {
        "interval": "1m",
        "input_series": [{"series": series.format(*pod), "values": f"{count}x5"} for pod, count in pods.items()],
        "promql_expr_test": [
            {"expr": asked.expr, "eval_time": "5m", "exp_samples": [{"labels": '{ready="True"}', "value": 8}]}
        ],
    }
    file = tmp_path / "test.yaml"
    file.write_text(yaml.safe_dump({"tests": [test]}))
    run_promtool("test", "rules", file)
