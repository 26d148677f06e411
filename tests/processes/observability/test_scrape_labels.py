"""The docs' scrape configuration gives the same labels as the operator's PodMonitor, checked in a real Prometheus."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from support.controlplane.server.api import eventually
from support.operator.operator_pipelines import build_all, make_pipeline, pick
from support.peers.prometheus import PodTarget, PrometheusProcess, scrape_config

PAGE = Path(__file__).parents[3] / "docs" / "observability.md"
STAGES = ("thinker", "talker", "token2wav")
JOBS = 3
"""The stages' by the page and by the PodMonitor, and the operator's."""


def read_jobs(targets: list[PodTarget]) -> list[dict[str, Any]]:
    """Returns the scrape jobs of the page, with static targets in place of service discovery."""
    jobs = yaml.safe_load(PAGE.read_text().split("```yaml\n", 1)[1].split("```", 1)[0])["scrape_configs"]
    for job in jobs:
        assert job.pop("kubernetes_sd_configs") == [{"role": "pod"}]
        job["static_configs"] = [target.static_config() for target in targets]
    return jobs


def labels_by_job(prometheus: PrometheusProcess) -> dict[str, list[dict[str, str]]]:
    found: dict[str, list[dict[str, str]]] = {}
    for target in prometheus.targets():
        labels = dict(target["labels"])
        found.setdefault(labels.pop("job"), []).append(labels)
    return {job: sorted(labels, key=lambda item: item["pod"]) for job, labels in found.items()}


def test_the_page_and_the_pod_monitor_agree(tmp_path: Path) -> None:
    children = build_all(make_pipeline())
    pods = {stage: pick(children, "Deployment", stage)["spec"]["template"]["metadata"]["labels"] for stage in STAGES}
    targets = [
        PodTarget(f"127.0.0.1:{number}", "models", f"{stage}-0", labels, port)
        for number, (stage, labels) in enumerate(pods.items(), 1)
        for port in ("metrics", "grpc")
    ]
    targets.append(PodTarget("127.0.0.1:9", "sys", "operator-0", {"app.kubernetes.io/name": "omnipipeline-operator"}))
    targets.append(PodTarget("127.0.0.1:8", "models", "database-0", {"app.kubernetes.io/name": "postgres"}))
    monitored = scrape_config("monitor", targets[:-2], pick(children, "PodMonitor"))
    with PrometheusProcess(tmp_path, [monitored, *read_jobs(targets)]) as prometheus:
        # It learns the targets of one job after the other.
        found = eventually(lambda: len(jobs := labels_by_job(prometheus)) == JOBS and jobs, why="all jobs have targets")
        assert isinstance(found, dict)
    assert found["monitor"] == found["omnipipeline-stages"]
    assert [labels["stage"] for labels in found["monitor"]] == sorted(STAGES)
    wanted = {"namespace", "pod", "pipeline", "stage", "revision", "instance"}
    assert all(labels.keys() == wanted for labels in found["monitor"])
    assert found["omnipipeline-operator"] == [{"instance": "127.0.0.1:9", "namespace": "sys", "pod": "operator-0"}]
