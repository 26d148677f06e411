"""A real Prometheus scrapes a real operator that manages a pipeline.

Every panel of the operator's dashboard and every alert on its metrics has data, and no alert fires.
tests/pipeline/observability/test_prometheus.py does the same for stages.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tools.observability.alerts import list_alerts
from tools.observability.operator_dashboard import OPERATOR_DASHBOARD

from support.controlplane.operators import OperatorProcess
from support.controlplane.pipelines import build_pipeline, wait_settled
from support.controlplane.server.api import Api, eventually
from support.peers.metric_rules import find_bad_metrics, scrape
from support.peers.prometheus import (
    PrometheusProcess,
    alert_signals,
    find_broken_rules,
    find_empty_variables,
    find_unanswered,
    is_about_operator,
    panel_queries,
)
from support.processes.polling import PATIENCE_S

pytestmark = pytest.mark.controlplane

ALERTS = [alert for alert in list_alerts() if is_about_operator(alert.expr)]


def test_every_panel_and_every_alert_has_an_answer(operator: OperatorProcess, api: Api, tmp_path: Path) -> None:
    address = f"127.0.0.1:{operator.port('metrics')}"
    # The labels that Prometheus' Kubernetes service discovery adds for a Service's endpoints.
    labels = {"namespace": "omnipipeline-system", "pod": "operator-0", "service": "operator-metrics"}
    config = {"job_name": "operator-metrics", "static_configs": [{"targets": [address], "labels": labels}]}
    with PrometheusProcess(tmp_path, [config]) as prometheus:
        eventually(lambda: prometheus.query("omni_operator_leader == 1"), timeout_s=PATIENCE_S, why="scraped")
        api.apply(build_pipeline())
        wait_settled(api)
        ready = f'omni_operator_pipeline_condition{{pipeline_namespace="{api.namespace}", condition="Ready"}} == 1'
        eventually(lambda: prometheus.query(ready), timeout_s=PATIENCE_S, why="the pipeline is ready in Prometheus too")
        # Rates need two scrapes.
        eventually(lambda: find_unanswered(prometheus, panel_queries(OPERATOR_DASHBOARD)) == [])
        eventually(lambda: find_empty_variables(prometheus, OPERATOR_DASHBOARD) == [])
        eventually(lambda: find_unanswered(prometheus, alert_signals(ALERTS)) == [])
        eventually(lambda: find_broken_rules(prometheus, ALERTS) == [], timeout_s=PATIENCE_S, why="nothing fires")
        families = scrape(f"http://{address}/metrics")
        assert find_bad_metrics(families) == []

        # A suspended pipeline is not Ready but raises no alert. A deleted pipeline has no series.
        api.patch("OmniPipeline", "omni", {"spec": {"suspend": True}})
        suspended = ready.replace('condition="Ready"', 'reason="Suspended"').replace("== 1", "== 0")
        eventually(lambda: prometheus.query(suspended), timeout_s=PATIENCE_S, why="suspended in Prometheus too")
        not_ready = next(alert for alert in ALERTS if alert.name == "OmniPipelineNotReady")
        eventually(lambda: not prometheus.query(not_ready.expr), timeout_s=PATIENCE_S, why="no alert while suspended")
        api.delete("OmniPipeline", "omni")
        gone = f'omni_operator_pipeline_condition{{pipeline_namespace="{api.namespace}"}}'
        eventually(lambda: not prometheus.query(gone), timeout_s=PATIENCE_S, why="gone from Prometheus too")
