"""A stage's ConfigMap, disruption budget and number of replicas, and the PodMonitor of all stages."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import yaml

from omni_operator import names
from omni_operator.desired.build_settings import BuildSettings
from omni_operator.kinds import key_of
from omni_proto.stage_config import parse_stage_config
from support.operator.operator_pipelines import (
    SETTINGS,
    build_all,
    build_set,
    make_pipeline,
    make_single,
    make_stages,
    pick,
)


class TestConfigMap:
    """The ConfigMap with the stage file."""

    def test_is_immutable_and_named_by_its_content(self) -> None:
        one = pick(build_all(make_single()), "ConfigMap")
        other = pick(build_all(make_single(limits={"maxConcurrentRequests": 5})), "ConfigMap")
        assert one["immutable"] is True
        assert one["metadata"]["name"] != other["metadata"]["name"]
        assert parse_stage_config(other["data"]["stage.yaml"]).limits.max_concurrent_requests == 5

    def test_a_changed_file_changes_the_pods_that_read_it_and_no_others(self) -> None:
        before = build_all(make_pipeline())
        stages = make_stages()
        stages[1]["limits"] = {"maxConcurrentRequests": 5}
        after = build_all(make_pipeline(stages))
        for stage, changes in (("thinker", False), ("talker", True), ("token2wav", False)):
            old, new = (pick(children, "Deployment", stage)["spec"]["template"] for children in (before, after))
            assert (old != new) is changes, stage
        annotations = pick(after, "Deployment", "talker")["spec"]["template"]["metadata"]["annotations"]
        assert pick(after, "ConfigMap", "talker")["metadata"]["name"].endswith(
            annotations[names.CONFIG_HASH_ANNOTATION]
        )

    def test_says_what_differs_from_the_defaults_only(self) -> None:
        """The stage file contains only required fields and fields that differ from their defaults."""
        text = pick(build_all(make_single()), "ConfigMap")["data"]["stage.yaml"]
        assert set(yaml.safe_load(text)) == {"schemaVersion", "pipeline", "stage", "component", "model", "outputs"}


class TestReplicas:
    """Deployments and disruption budgets by number of replicas."""

    @pytest.mark.parametrize(("replicas", "budgets"), [(0, 0), (1, 0), (2, 1), (5, 1)])
    def test_a_budget_where_a_pod_can_be_spared(self, replicas: int, budgets: int) -> None:
        """Only stages with at least two replicas have a PodDisruptionBudget."""
        children = build_all(make_single(replicas=replicas))
        assert pick(children, "Deployment")["spec"]["replicas"] == replicas
        found = [child for child in children if child["kind"] == "PodDisruptionBudget"]
        assert len(found) == budgets
        for budget in found:
            assert budget["spec"]["maxUnavailable"] == 1
            assert budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"

    def test_suspended_pipelines_keep_everything_but_pods(self) -> None:
        stages = [{**stage, "replicas": 2} for stage in make_stages()]
        running, suspended = build_all(make_pipeline(stages)), build_all(make_pipeline(stages, suspend=True))
        assert all(c["spec"]["replicas"] == 0 for c in suspended if c["kind"] == "Deployment")
        kept = {
            key_of(child) for child in running if child["kind"] not in ("PodDisruptionBudget", "ControllerRevision")
        }
        assert kept <= {key_of(child) for child in suspended}
        templates = [
            [child["spec"]["template"] for child in children if child["kind"] == "Deployment"]
            for children in (running, suspended)
        ]
        assert templates[0] == templates[1]

    @pytest.mark.parametrize("suspend", [False, True], ids=["running", "suspended"])
    def test_deployments_have_the_replicas_that_the_rollout_decided(self, suspend: bool) -> None:
        """Deployments have the replicas that the rollout decided, not those of the spec."""
        pipeline = make_pipeline([{**s, "replicas": 3} for s in make_stages()], suspend=suspend)
        children = build_set(pipeline, replicas={"thinker": 0, "talker": 3, "token2wav": 3})
        found = {c["metadata"]["labels"]["omnipipeline.io/stage"]: c["spec"]["replicas"]
                 for c in children if c["kind"] == "Deployment"}  # fmt: skip
        assert found == {"thinker": 0, "talker": 3, "token2wav": 3}

    @pytest.mark.parametrize(
        ("rollout", "expected"),
        [
            pytest.param({}, {"maxSurge": 1, "maxUnavailable": 0}, id="default"),
            pytest.param(
                {"maxSurge": 0, "maxUnavailable": 1}, {"maxSurge": 0, "maxUnavailable": 1}, id="no room for one more"
            ),
            pytest.param({"maxSurge": "50%"}, {"maxSurge": "50%", "maxUnavailable": 0}, id="percent"),
        ],
    )
    def test_rolling_update(self, rollout: dict[str, Any], expected: dict[str, Any]) -> None:
        deployment = pick(build_all(make_single(spec={"rollout": rollout})), "Deployment")
        assert deployment["spec"]["strategy"] == {"type": "RollingUpdate", "rollingUpdate": expected}


class TestPodMonitor:
    """The PodMonitor, which is built only if the cluster has that API and the operator's settings allow it."""

    def test_absent_without_the_api(self) -> None:
        children = build_all(make_pipeline(), BuildSettings())
        assert not [child for child in children if child["kind"] == "PodMonitor"]

    def test_has_the_labels_by_which_prometheus_selects_it_and_keeps_its_own(self) -> None:
        chosen = (("omnipipeline.io/pipeline", "x"), ("release", "prometheus"))
        settings = replace(SETTINGS, pod_monitor_labels=chosen)
        plain, labelled = (
            pick(build_all(make_pipeline(), s), "PodMonitor")["metadata"]["labels"] for s in (SETTINGS, settings)
        )
        assert labelled == {**plain, "release": "prometheus"}

    def test_scrapes_every_stage_of_the_revision(self) -> None:
        children = build_all(make_pipeline())
        monitor = pick(children, "PodMonitor")["spec"]
        for deployment in (child for child in children if child["kind"] == "Deployment"):
            template = deployment["spec"]["template"]
            assert monitor["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
            labels = template["metadata"]["labels"]
            known = {f"__meta_kubernetes_pod_label_{re.sub('[./-]', '_', label)}" for label in labels}
            relabelings = monitor["podMetricsEndpoints"][0]["relabelings"]
            assert {source for rule in relabelings for source in rule["sourceLabels"]} < known
            ports = {port["name"] for port in template["spec"]["containers"][0]["ports"]}
            assert {endpoint["port"] for endpoint in monitor["podMetricsEndpoints"]} <= ports
