"""A real Prometheus scrapes the pods of a real node, with the labels that the operator gave them.

Under traffic every panel of both dashboards and the query behind every alert have data, and no alert fires.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tools.observability.alerts import list_alerts
from tools.observability.operator_dashboard import OPERATOR_DASHBOARD
from tools.observability.pipeline_dashboard import PIPELINE_DASHBOARD

from omni_proto.pipeline import parse_pipeline
from support.cluster.client_pod import TARGET, ClientPod, Load
from support.cluster.cluster import Cluster
from support.cluster.workload import SAMPLES
from support.controlplane.server.api import Api, Manifest, eventually
from support.operator.operator_pipelines import build_all, pick
from support.peers.prometheus import (
    Asked,
    PodTarget,
    PrometheusProcess,
    alert_signals,
    find_broken_rules,
    find_empty_variables,
    find_unanswered,
    panel_queries,
    scrape_config,
)

METRICS_PORT = 9090
SPEECH = (
    'omni_pipeline_first_audio_seconds_count{pipeline="tiny-omni"}',
    'omni_pipeline_real_time_factor_ratio_count{pipeline="tiny-omni"}',
    'sum(omni_pipeline_spoken_answers_total{pipeline="tiny-omni"})',
    'omni_pipeline_audio_seconds_total{pipeline="tiny-omni"}',
)
"""Series that the dashboard's speech row and the alerts on speech use."""


def targets_of(api: Api, selector: str) -> list[PodTarget]:
    """Returns the pods' metrics endpoints, as Kubernetes service discovery would list them."""
    return [
        PodTarget(
            f"{pod['status']['podIP']}:{METRICS_PORT}",
            pod["metadata"]["namespace"],
            pod["metadata"]["name"],
            pod["metadata"]["labels"],
        )
        for pod in api.list("Pod", selector)
    ]


@pytest.fixture(scope="module")
def prometheus(
    cluster: Cluster, operator: str, speech: Api, tiny_omni: Manifest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PrometheusProcess]:
    """Yields a Prometheus in the node's network namespace, from which it reaches pods.

    Its scrape configuration comes from the PodMonitor that the operator builds.
    """
    monitor = pick(build_all(parse_pipeline((SAMPLES / "tiny-omni.yaml").read_text())), "PodMonitor")
    stages = targets_of(speech, "omnipipeline.io/pipeline=tiny-omni")
    operators = targets_of(cluster.admin.in_namespace(operator), "app.kubernetes.io/name=omnipipeline-operator")
    assert len(stages) == 3
    assert operators
    configs = [scrape_config("speech/tiny-omni", stages, monitor), scrape_config("operator", operators, monitor)]
    folder: Path = tmp_path_factory.mktemp("prometheus")
    with PrometheusProcess(folder, configs, host=cluster.node_address, network=cluster.layout.network) as running:
        eventually(
            lambda: {target["health"] for target in running.targets()} == {"up"},
            timeout_s=60,
            why="every target is scraped",
        )
        yield running


@pytest.mark.timeout(600)
def test_every_query_is_answered_under_traffic(prometheus: PrometheusProcess, speech: Api, client: ClientPod) -> None:
    def check(questions: list[Asked]) -> None:
        def all_answered() -> bool:
            unanswered = find_unanswered(prometheus, questions)
            assert not unanswered, unanswered
            return True

        # Histograms count requests that have ended, and a rate needs two samples.
        eventually(all_answered, timeout_s=90, every_s=2, why="every query has an answer")

    alerts = list_alerts()
    with Load(client, TARGET) as load:
        # The operator's counters have no series until it reconciles something.
        speech.patch("OmniPipeline", "tiny-omni", {"metadata": {"annotations": {"example.com/seen": "yes"}}})
        check([*panel_queries(PIPELINE_DASHBOARD), *panel_queries(OPERATOR_DASHBOARD)])
        check(alert_signals(alerts))
    assert load.answered
    assert not load.failures
    for series in SPEECH:
        (sample,) = prometheus.query(series)
        assert float(sample["value"][1]) > 0, series
    for dashboard in (PIPELINE_DASHBOARD, OPERATOR_DASHBOARD):
        assert find_empty_variables(prometheus, dashboard) == []
    assert find_broken_rules(prometheus, alerts) == []
    assert prometheus.label_values("stage", 'omni_stage_info{pipeline="tiny-omni", namespace="speech"}') == [
        "talker",
        "thinker",
        "token2wav",
    ]
