"""Every child: what it is named, what it carries, and the things of its kind that matter."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_kube.objects import ObjectKind
from omni_operator import names
from omni_operator.desired import build_revision_set, build_shared
from omni_operator.desired.build_settings import BuildSettings, Owner
from omni_operator.desired.metadata import seal
from omni_operator.desired.revision import compute_revision
from omni_operator.kinds import CHILD_KINDS, FIELD_MANAGER, KIND_BY_NAME, key_of
from omni_operator.rollout.replicas import first_replicas
from omni_proto.pipeline import OmniPipeline, PipelineError, load_pipeline
from omni_proto.pod_contract import REVISION_LABEL
from omni_proto.stage_config import parse_stage_config
from support.operator_pipelines import (
    OWNER,
    SETTINGS,
    build_all,
    build_set,
    make_pipeline,
    make_single,
    make_stages,
    pick,
)

HASH = names.DESIRED_HASH_ANNOTATION
LONGEST_PIPELINE_AND_STAGE = 54
"""Characters of PIPELINE-STAGE that the resource allows."""


class TestEveryChild:
    """Rules that hold for all kinds alike."""

    CHILDREN = build_all(make_pipeline([{**stage, "replicas": 2} for stage in make_stages()]))

    def test_kinds_and_numbers(self) -> None:
        assert Counter(child["kind"] for child in self.CHILDREN) == {
            "ServiceAccount": 1,
            "Service": 5,
            "ControllerRevision": 1,
            "PodMonitor": 1,
            "ConfigMap": 3,
            "NetworkPolicy": 3,
            "Deployment": 3,
            "PodDisruptionBudget": 3,
        }
        assert {child["kind"] for child in self.CHILDREN} == set(KIND_BY_NAME)

    def test_keys_are_unique(self) -> None:
        assert len({key_of(child) for child in self.CHILDREN}) == len(self.CHILDREN)

    @pytest.mark.parametrize("child", CHILDREN, ids=lambda child: f"{child['kind']}/{child['metadata']['name']}")
    def test_metadata(self, child: dict[str, Any]) -> None:
        metadata = child["metadata"]
        assert child["apiVersion"] == KIND_BY_NAME[child["kind"]].api_version
        assert metadata["namespace"] == OWNER.namespace
        assert metadata["labels"]["omnipipeline.io/pipeline"] == OWNER.name
        assert metadata["labels"]["app.kubernetes.io/managed-by"] == FIELD_MANAGER
        assert metadata["ownerReferences"] == [
            {
                "apiVersion": "omnipipeline.io/v1alpha1",
                "kind": "OmniPipeline",
                "name": OWNER.name,
                "uid": OWNER.uid,
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ]
        assert seal(child) == child

    def test_only_what_outlives_revisions_lacks_the_revision_s_label(self) -> None:
        shared = [child for child in self.CHILDREN if REVISION_LABEL not in child["metadata"]["labels"]]
        assert {key_of(child) for child in shared} == {
            ("ServiceAccount", "demo-stages"),
            ("Service", "demo"),
            ("Service", "demo-headless"),
        }

    def test_children_share_no_parts_that_one_could_change_for_another(self) -> None:
        def ids_of(value: Any) -> list[int]:
            if isinstance(value, dict):
                return [id(value), *(found for item in value.values() for found in ids_of(item))]
            if isinstance(value, list):
                return [id(value), *(found for item in value for found in ids_of(item))]
            return []

        deployments = [child for child in build_all(make_pipeline()) if child["kind"] == "Deployment"]
        seen = [found for child in deployments for found in ids_of(child["spec"]["template"]["spec"]["containers"])]
        assert len(seen) == len(set(seen))


class TestSeal:
    """The hash tells every difference, and only differences."""

    def test_stable(self) -> None:
        assert build_all(make_pipeline()) == build_all(make_pipeline())

    def test_order_of_keys_does_not_count(self) -> None:
        child = build_all(make_pipeline())[0]
        turned = dict(reversed(child.items()))
        assert seal(turned)["metadata"]["annotations"][HASH] == child["metadata"]["annotations"][HASH]

    @settings(deadline=None, max_examples=30)
    @given(st.permutations(range(4)))
    def test_order_of_stages_does_not_count(self, order: list[int]) -> None:
        """Server-side apply by two managers puts them in an order of its own."""
        stages = [*make_stages(), {"name": "caption", "component": "generic/llm", "inputs": [{"from": "thinker"}]}]
        stages[3]["outputs"] = ["Text"]
        one, other = (
            {
                key_of(child): child
                for child in build_all(make_pipeline(listed))
                if child["kind"] != "ControllerRevision"
            }
            for listed in (stages, [stages[index] for index in order])
        )
        assert one == other

    def test_a_removed_field_counts(self) -> None:
        child = build_all(make_pipeline())[0]
        del child["automountServiceAccountToken"]
        assert seal(child)["metadata"]["annotations"][HASH] != child["metadata"]["annotations"][HASH]

    def test_other_annotations_stay(self) -> None:
        sealed = seal({"kind": "X", "metadata": {"annotations": {"a": "b"}}})
        assert set(sealed["metadata"]["annotations"]) == {"a", HASH}

    def test_without_a_live_owner_there_is_no_reference(self) -> None:
        pipeline = make_pipeline()
        for child in build_revision_set(pipeline, "abc1234", first_replicas(pipeline), Owner("demo", "ns"), SETTINGS):
            assert "ownerReferences" not in child["metadata"]


class TestServices:
    """Stable entry and headless stages."""

    def test_entry_selects_the_serving_revision_by_role(self) -> None:
        headless, entry = build_shared(OWNER, "abc1234")[1:]
        assert entry["metadata"]["name"] == "demo"
        assert headless["metadata"]["name"] == "demo-headless"
        assert headless["spec"]["clusterIP"] == "None"
        for service in (entry, headless):
            assert names.serving_revision(service["spec"]["selector"]) == "abc1234"
            assert service["spec"]["selector"]["omnipipeline.io/role"] == "entry"
            assert "omnipipeline.io/stage" not in service["spec"]["selector"]

    @pytest.mark.parametrize("tls", [False, True], ids=["plaintext", "TLS"])
    def test_what_meshes_are_told(self, tls: bool) -> None:
        entry = {"tls": {"secretName": "cert"}} if tls else {}
        children = [*build_shared(OWNER, "abc1234", tls=tls), *build_set(make_pipeline(entry=entry))]
        told = {
            child["metadata"]["name"].rpartition("-")[0] or child["metadata"]["name"]: port["appProtocol"]
            for child in children
            if child["kind"] == "Service"
            for port in child["spec"]["ports"]
        }
        ours = "https" if tls else "kubernetes.io/h2c"
        assert told == {
            **dict.fromkeys(("demo", "demo-thinker"), ours),
            **dict.fromkeys(("demo-talker", "demo-token2wav"), "kubernetes.io/h2c"),
        }

    def test_while_nothing_serves_no_pod_is_selected(self) -> None:
        children = [*build_shared(OWNER, None), *build_set(make_pipeline())]
        entry = next(child for child in children if key_of(child) == ("Service", "demo"))
        assert names.serving_revision(entry["spec"]["selector"]) is None
        for deployment in (child for child in children if child["kind"] == "Deployment"):
            labels = deployment["spec"]["template"]["metadata"]["labels"]
            assert not entry["spec"]["selector"].items() <= labels.items()

    def test_one_stage_of_the_set_is_the_entry(self) -> None:
        children = build_all(make_pipeline())
        selector = next(child for child in children if key_of(child) == ("Service", "demo"))["spec"]["selector"]
        matching = [
            child["metadata"]["labels"]["omnipipeline.io/stage"]
            for child in children
            if child["kind"] == "Deployment"
            and selector.items() <= child["spec"]["template"]["metadata"]["labels"].items()
        ]
        assert matching == ["thinker"]

    def test_each_upstream_is_configured_with_the_service_of_its_own_revision(self) -> None:
        pipeline = make_pipeline()
        children = build_all(pipeline)
        revision = compute_revision(pipeline, SETTINGS.default_image)
        config = parse_stage_config(pick(children, "ConfigMap", "thinker")["data"]["stage.yaml"])
        target = f"dns:///demo-talker-{revision}.models.svc.cluster.local.:50051"
        assert [edge.target for edge in config.downstream] == [target]
        service = next(child for child in children if child["metadata"]["name"] == f"demo-talker-{revision}")
        assert service["kind"] == "Service"
        assert service["spec"]["selector"] == names.stage_selector("demo", "talker", revision)

    def test_another_cluster_domain(self) -> None:
        children = build_all(make_pipeline(), BuildSettings(cluster_domain="corp.example"))
        assert ".svc.corp.example.:50051" in pick(children, "ConfigMap", "thinker")["data"]["stage.yaml"]


class TestConfigMap:
    """The stage file."""

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
        text = pick(build_all(make_single()), "ConfigMap")["data"]["stage.yaml"]
        assert set(yaml.safe_load(text)) == {"schemaVersion", "pipeline", "stage", "component", "model", "outputs"}


class TestReplicas:
    """Deployments and budgets by the number of pods."""

    @pytest.mark.parametrize(("replicas", "budgets"), [(0, 0), (1, 0), (2, 1), (5, 1)])
    def test_a_budget_where_a_pod_can_be_spared(self, replicas: int, budgets: int) -> None:
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
    def test_a_set_that_ends_has_the_pods_it_is_told(self, suspend: bool) -> None:
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
    """Only where the cluster has the API."""

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


class TestSizes:
    """Names and objects at the bounds of the resource."""

    def test_the_longest_names_fit_every_kind(self) -> None:
        stage = "s" * 20
        pipeline = make_single(name="p" * (LONGEST_PIPELINE_AND_STAGE - 21))
        stages = [{**make_stages()[0], "name": stage}]
        children = build_all(make_pipeline(stages, name=pipeline.metadata.name))
        for child in children:
            limit = 63 if child["kind"] in ("Service", "Deployment") else 253
            assert len(child["metadata"]["name"]) <= limit
            for value in child["metadata"]["labels"].values():
                assert len(value) <= 63

    def largest(self, length: int) -> OmniPipeline:
        """Sixteen stages, each with the same annotations of that length."""
        labels = {f"example.com/{index:02}{'k' * 50}": "v" * 63 for index in range(32)}
        annotations = {f"example.com/{index:02}{'k' * 50}": "a" * length for index in range(32)}
        stages: list[dict[str, Any]] = [
            {
                "name": f"s{index}",
                "component": "generic/llm",
                "outputs": ["Text"],
                "defaultSampling": {"stop": ["x" * 64] * 8, "stopTokenIds": list(range(64))},
                **({"inputs": [{"from": f"s{index - 1}"}]} if index else {}),
            }
            for index in range(16)
        ]
        return make_pipeline(stages, defaults={"podLabels": labels, "podAnnotations": annotations})

    def test_the_largest_pipeline_makes_objects_far_below_what_the_api_takes(self) -> None:
        """The spec's bound is its children's too: common annotations are in each of sixteen Deployments."""
        children = build_all(self.largest(1200))
        sizes = [len(json.dumps(child)) for child in children]
        assert max(sizes) < 128 * 1024
        assert sum(sizes) < 2 * 1024 * 1024

    def test_a_larger_spec_is_refused(self) -> None:
        with pytest.raises(PipelineError, match=r"spec: is \d+ bytes as JSON, over the limit of 65536"):
            self.largest(2000)


def test_paths_of_kinds() -> None:
    assert [(kind.group, kind.path("ns")) for kind in CHILD_KINDS if kind.kind in ("Service", "Deployment")] == [
        ("", "/api/v1/namespaces/ns/services"),
        ("apps", "/apis/apps/v1/namespaces/ns/deployments"),
    ]
    assert ObjectKind("Service", "v1", "services").path("", "") == "/api/v1/services"
    assert KIND_BY_NAME["PodMonitor"].path("ns", "x").endswith("/namespaces/ns/podmonitors/x")


def test_url() -> None:
    assert names.pipeline_url("demo", "models") == "grpc://demo.models.svc:50051"
    assert names.pipeline_url("demo", "models", tls=True) == "grpcs://demo.models.svc:50051"


def test_samples_build(request: pytest.FixtureRequest) -> None:
    for sample in (request.config.rootpath / "manifests" / "samples").glob("*.yaml"):
        assert build_all(load_pipeline(sample))
