"""The pod template's placement: selectors, tolerations, affinity, priority, spread over hosts, images and labels."""

from __future__ import annotations

import pytest

from omni_operator.desired.pod_settings import drop_empty
from support.operator.operator_pipelines import SETTINGS, build_all, make_single, pick, pod_spec
from support.operator.pod_templates import HUB, all_containers


class TestPlacement:
    """Fields of an OmniPipeline that are copied to the pod spec."""

    SETTINGS = {
        "imagePullSecrets": [{"name": "registry"}],
        "runtimeClassName": "nvidia",
        "nodeSelector": {"gpu": "h100"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}]
                }
            },
            "podAntiAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {"weight": 1, "podAffinityTerm": {"labelSelector": {}, "topologyKey": "kubernetes.io/hostname"}}
                ]
            },
        },
        "priorityClassName": "serving",
        "schedulerName": "volcano",
        "serviceAccountName": "models",
        "terminationGracePeriodSeconds": 600,
        "resourceClaims": [
            {"name": "shared", "resourceClaimName": "mig"},
            {"name": "own", "resourceClaimTemplateName": "gpu"},
        ],
    }

    @pytest.mark.parametrize("where", ["stage", "defaults"])
    @pytest.mark.parametrize("field", SETTINGS)
    def test_reaches_the_pod_as_it_was_written(self, field: str, where: str) -> None:
        setting = {field: self.SETTINGS[field]}
        pipeline = make_single(**setting) if where == "stage" else make_single(spec={"defaults": setting})
        assert pod_spec(build_all(pipeline))[field] == self.SETTINGS[field]

    def test_an_empty_value_of_a_toleration_is_not_written(self) -> None:
        """The API server drops an empty value."""
        pipeline = make_single(tolerations=[{"key": "gpu", "operator": "Equal", "value": ""}])
        assert pod_spec(build_all(pipeline))["tolerations"] == [{"key": "gpu", "operator": "Equal"}]

    def test_unset_fields_are_not_written(self) -> None:
        """Fields that the spec does not set are absent from the pod spec."""
        always = {"serviceAccountName", "terminationGracePeriodSeconds"}
        assert set(self.SETTINGS) & set(pod_spec(build_all(make_single()))) == always

    def test_a_stage_s_own_setting_replaces_the_default_as_a_whole(self) -> None:
        defaults = {"nodeSelector": {"a": "1", "b": "2"}, "tolerations": [{"operator": "Exists"}], "image": "stage:2"}
        pipeline = make_single(nodeSelector={"c": "3"}, tolerations=[], image="stage:3", spec={"defaults": defaults})
        spec = pod_spec(build_all(pipeline))
        assert spec["nodeSelector"] == {"c": "3"}
        assert "tolerations" not in spec
        assert spec["containers"][0]["image"] == "stage:3"

    def test_images(self) -> None:
        assert pod_spec(build_all(make_single()))["containers"][0]["image"] == SETTINGS.default_image
        spec = pod_spec(build_all(make_single(spec={"defaults": {"image": "stage:2"}, **HUB})))
        assert {container["image"] for container in all_containers(spec)} == {"stage:2"}

    def test_pods_are_spread_over_hosts_where_possible(self) -> None:
        (spread,) = pod_spec(build_all(make_single()))["topologySpreadConstraints"]
        template = pick(build_all(make_single()), "Deployment")["spec"]["template"]
        assert (spread["topologyKey"], spread["maxSkew"]) == ("kubernetes.io/hostname", 1)
        assert spread["whenUnsatisfiable"] == "ScheduleAnyway"
        assert spread["labelSelector"]["matchLabels"].items() <= template["metadata"]["labels"].items()

    def test_a_topology_in_the_spec_replaces_the_default_spread(self) -> None:
        """A topology in the spec replaces the default spread over hosts. An empty list removes it."""
        topology = [{"topologyKey": "topology.kubernetes.io/zone", "maxSkew": 2, "whenUnsatisfiable": "DoNotSchedule"}]
        (spread,) = pod_spec(build_all(make_single(topology=topology)))["topologySpreadConstraints"]
        assert {key: spread[key] for key in topology[0]} == topology[0]
        assert "topologySpreadConstraints" not in pod_spec(build_all(make_single(topology=[])))

    def test_labels_and_annotations_of_the_resource_never_replace_ours(self) -> None:
        template = pick(
            build_all(make_single(podLabels={"team": "speech"}, podAnnotations={"example.com/note": "x"})), "Deployment"
        )["spec"]["template"]["metadata"]
        plain = pick(build_all(make_single()), "Deployment")["spec"]["template"]["metadata"]
        assert template["labels"] == {**plain["labels"], "team": "speech"}
        assert template["annotations"] == {**plain["annotations"], "example.com/note": "x"}

    def test_fields_that_the_server_would_drop_are_not_written(self) -> None:
        value = {"a": None, "b": [], "c": {"d": {}}, "e": [{}, {"f": []}], "labelSelector": {}, "g": 0, "h": ""}
        assert drop_empty(value) == {"e": [{}, {}], "labelSelector": {}, "g": 0, "h": ""}
