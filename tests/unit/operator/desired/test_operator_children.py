"""Names, labels, desired-state hashes and sizes of a pipeline's children, which are the objects made for it."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from omni_kube.objects import ObjectKind
from omni_operator import names
from omni_operator.desired.build_settings import Owner
from omni_operator.desired.children import build_revision_set, build_scale_target
from omni_operator.desired.metadata import seal
from omni_operator.desired.route import build_route
from omni_operator.kinds import CHILD_KINDS, FIELD_MANAGER, KIND_BY_NAME, ROUTE_KINDS, key_of
from omni_operator.rollout.replicas import first_replicas
from omni_proto.pipeline import OmniPipeline, PipelineError, load_pipeline
from omni_proto.pipeline.types.entry import EntryRoute
from omni_proto.pod_contract import REVISION_LABEL
from support.operator.operator_pipelines import OWNER, SETTINGS, build_all, make_pipeline, make_single, make_stages
from support.tables import each_row

HASH = names.DESIRED_HASH_ANNOTATION
LONGEST_PIPELINE_AND_STAGE = 54
"""The largest number of characters that the CRD allows for PIPELINE-STAGE."""

ROUTES = (
    {"gatewayApi": {"parentRefs": [{"name": "a"}], "backendTls": {"caCertificateRefs": [{"name": "a"}]}}},
    {"gatewayApi": {"kind": "HTTPRoute", "parentRefs": [{"name": "a"}]}},
    {"ingress": {"host": "a.example"}},
)


class TestEveryChild:
    """Rules for children of every kind."""

    CHILDREN = [
        *build_all(make_pipeline([{**stage, "replicas": 2} for stage in make_stages()])),
        build_scale_target(OWNER, "talker"),
        *(child for route in ROUTES for child in build_route(OWNER, EntryRoute.model_validate(route))),
    ]

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
            "OmniStage": 1,
            **dict.fromkeys(ROUTE_KINDS, 1),
        }
        assert {child["kind"] for child in self.CHILDREN} == set(KIND_BY_NAME)

    def test_keys_are_unique(self) -> None:
        assert len({key_of(child) for child in self.CHILDREN}) == len(self.CHILDREN)

    @each_row("child", CHILDREN, ids=lambda child: f"{child['kind']}/{child['metadata']['name']}")
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
        """Only children that all revisions share have no revision label."""
        shared = [child for child in self.CHILDREN if REVISION_LABEL not in child["metadata"]["labels"]]
        assert {key_of(child) for child in shared} == {
            ("ServiceAccount", "demo-stages"),
            ("Service", "demo"),
            ("Service", "demo-headless"),
            ("OmniStage", "demo-talker"),
            *((kind, "demo") for kind in ROUTE_KINDS),
        }

    def test_children_share_no_parts_that_one_could_change_for_another(self) -> None:
        """The containers of two Deployments share no dict or list, so editing one manifest changes no other."""

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
    """The hash changes if and only if the desired object changes."""

    def test_stable(self) -> None:
        assert build_all(make_pipeline()) == build_all(make_pipeline())

    def test_order_of_keys_does_not_count(self) -> None:
        child = build_all(make_pipeline())[0]
        turned = dict(reversed(child.items()))
        assert seal(turned)["metadata"]["annotations"][HASH] == child["metadata"]["annotations"][HASH]

    @settings(max_examples=30)
    @given(st.permutations(range(4)))
    def test_order_of_stages_does_not_count(self, order: list[int]) -> None:
        """Server-side apply by two field managers may reorder the stages. That changes no child but the snapshot."""
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
        """Children that are built without a live pipeline have no ownerReferences."""
        pipeline = make_pipeline()
        for child in build_revision_set(pipeline, "abc1234", first_replicas(pipeline), Owner("demo", "ns"), SETTINGS):
            assert "ownerReferences" not in child["metadata"]


class TestSizes:
    """Names and objects at the limits of the CRD."""

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
        """Returns a pipeline of sixteen stages. Each value of its common annotations has `length` characters."""
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
        """The size limit of the spec also bounds its children, though sixteen Deployments repeat its annotations."""
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
