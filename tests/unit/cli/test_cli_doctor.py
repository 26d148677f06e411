"""`omnipipe doctor`: the verdicts on what was read of a cluster."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml

from omni_cli.cluster.facts import CRDS, Facts, Unknown
from omni_cli.commands.doctor import Diagnosis, judge, list_fields
from omni_proto.pipeline.schema import object_schema

Json = dict[str, Any]
FORBIDDEN = Unknown("the API server answers 403 (Forbidden)", 403)


INSTALLED: dict[str, Json] = {
    one["spec"]["names"]["kind"]: one
    for one in (yaml.safe_load(file.read_text()) for file in (Path(__file__).parents[3] / "manifests/crd").iterdir())
}


def crds(kind: str, *, schema: Json | None = None, version: str = "v1alpha1", without: str = "", **said: str) -> Json:
    """Returns all CRDs, with those changes to the one of a kind. said: conditions."""
    changed = copy.deepcopy(INSTALLED[kind])
    (served,) = changed["spec"]["versions"]
    served["name"] = version
    served["schema"] = {"openAPIV3Schema": schema or served["schema"]["openAPIV3Schema"]}
    served["subresources"].pop(without, None)
    conditions = {"NamesAccepted": "True", "Established": "True", **said}
    changed["status"] = {"conditions": [{"type": name, "status": status} for name, status in conditions.items()]}
    return {**GOOD_CRDS, kind: changed}


def operator(version: str = "0.1.0", replicas: int = 1, ready: int = 1) -> Json:
    labels = {"app.kubernetes.io/version": version}
    metadata = {"namespace": "omni", "name": "operator", "labels": labels}
    return {"metadata": metadata, "spec": {"replicas": replicas}, "status": {"readyReplicas": ready}}


def node(*, taints: bool = False, **allocatable: str) -> Json:
    found = {name.replace("_", "/"): count for name, count in allocatable.items()}
    return {"spec": {"taints": [{"effect": "NoSchedule"}] if taints else []}, "status": {"allocatable": found}}


GOOD_CRDS: dict[str, Json] = {}
GOOD_CRDS |= {kind: crds(kind)[kind] for kind in INSTALLED}
GOOD = Facts(
    namespace="models",
    version={"gitVersion": "v1.34.1"},
    crds=GOOD_CRDS,
    operators=[operator()],
    nodes=[{"spec": {}, "status": {"allocatable": {"cpu": "4", "nvidia.com/gpu": "2"}}}],
    space={"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}},
    policies=[],
    quotas=[],
    classes=[{"metadata": {"name": "fast", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}}],
    groups={
        "groups": [{"name": name} for name in ("gateway.networking.k8s.io", "monitoring.coreos.com", "metrics.k8s.io")]
    },
    admitted={},
    rights={"create omnipipelines": True},
)


def findings(**changed: Any) -> list[Diagnosis]:
    return judge(dataclasses.replace(GOOD, **changed), "0.1.0")


def test_nothing_is_wrong_with_a_good_cluster() -> None:
    assert {one.level for one in findings()} == {"ok"}
    assert {one.check for one in findings()} == {
        *("kubernetes", "crd", "operator", "rights", "devices", "admission", "quotas", "network", "storage", "apis")
    }


CRD_OLDER = copy.deepcopy(object_schema())
del CRD_OLDER["properties"]["spec"]["properties"]["stages"]["items"]["properties"]["systemPrompt"]
CRD_NEWER = copy.deepcopy(object_schema())
CRD_NEWER["properties"]["spec"]["properties"]["speculation"] = {"type": "object"}
TABLE: list[tuple[str, Any, str, str, str]] = [
    ("version", {"gitVersion": "v1.29.3-eks-1"}, "kubernetes", "error", "older than 1.30"),
    *(
        ("crds", {**GOOD_CRDS, kind: Unknown("404", 404)}, "crd", "error", f"{kind} is not installed")
        for kind in ("OmniPipeline", "OmniStage")
    ),
    ("crds", crds("OmniPipeline", version="v1"), "crd", "error", "served in v1, not v1alpha1"),
    ("crds", crds("OmniStage", Established="False"), "crd", "error", "OmniStage has Established=False"),
    ("crds", crds("OmniStage", Terminating="True"), "crd", "error", "OmniStage has Terminating=True"),
    ("crds", crds("OmniStage", without="scale"), "crd", "warning", "refuses or drops /scale"),
    (
        *("crds", crds("OmniPipeline", schema=CRD_OLDER), "crd", "warning"),
        "older than this omnipipe: the API server refuses or drops spec.stages[]",
    ),
    (
        *("crds", crds("OmniPipeline", schema=CRD_NEWER), "crd", "warning"),
        "newer than this omnipipe, which does not know spec.speculation",
    ),
    ("operators", [], "operator", "error", "there is none"),
    ("operators", [operator(replicas=0, ready=0)], "operator", "error", "has no pods"),
    ("operators", [operator(ready=0)], "operator", "error", "has no ready pod"),
    ("operators", [operator(version="0.2.0")], "operator", "warning", "is version 0.2.0, this omnipipe 0.1.0"),
    ("rights", {"create omnipipelines": False}, "rights", "warning", "you may not create omnipipelines in models"),
    ("nodes", [{"spec": {}, "status": {}}], "devices", "warning", "none of 1 nodes offers a GPU"),
    ("nodes", [node(taints=True, amd_gpu="1")], "devices", "ok", "1 amd/gpu"),
    ("nodes", [node(taints=True, amd_gpu="1")], "devices", "warning", "all nodes with amd/gpu have taints"),
    ("admitted", Unknown('403: pods "x" violates PodSecurity', 403), "admission", "error", "violates PodSecurity"),
    ("admitted", Unknown('403: user "u" cannot create resource', 403), "admission", "note", "not checked"),
    (
        "quotas",
        [{"metadata": {"name": "q"}, "spec": {"hard": {"pods": "2"}}, "status": {"used": {"pods": "2"}}}],
        *("quotas", "warning", "q has no room left: pods"),
    ),
    (
        "policies",
        [{"metadata": {"name": "deny"}, "spec": {"podSelector": {}, "policyTypes": ["Egress"]}}],
        *("network", "note", "deny closes the egress"),
    ),
    ("classes", [], "storage", "note", "no default storage class"),
    ("groups", {"groups": []}, "apis", "note", "no gateway.networking.k8s.io"),
]


@pytest.mark.parametrize(("field", "value", "check", "level", "text"), TABLE, ids=lambda item: str(item)[:30])
def test_what_is_wrong_is_named(field: str, value: Any, check: str, level: str, text: str) -> None:
    found = [one for one in findings(**{field: value}) if (one.check, one.level) == (check, level) and text in one.text]
    assert found, findings(**{field: value})
    assert level == "ok" or found[0].remedy


def test_each_crd_of_the_chart_is_checked() -> None:
    assert set(CRDS) == set(INSTALLED)
    assert {one.text.split()[0] for one in findings() if one.check == "crd"} == set(INSTALLED)
    unread = findings(crds=dict.fromkeys(CRDS, FORBIDDEN))
    assert [one.level for one in unread if "not checked" in one.text] == ["note"] * len(CRDS)


@pytest.mark.parametrize("field", ["operators", "nodes", "policies", "quotas", "classes", "groups"])
def test_what_may_not_be_read_is_reported(field: str) -> None:
    assert [one.level for one in findings(**{field: FORBIDDEN}) if "not checked" in one.text] == ["note"]


def test_fields_are_found_at_any_depth() -> None:
    fields = list_fields(object_schema()["properties"]["spec"])
    assert {"spec.stages", "spec.stages[].engineArgs.maxModelLen", "spec.entry.tls.secretName"} <= fields
