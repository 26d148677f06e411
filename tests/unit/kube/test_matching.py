"""A live object matches its manifest although the API server adds and rewrites fields.

A manual edit of a field that the manifest sets is a difference.
"""

from __future__ import annotations

import copy
from fractions import Fraction
from typing import Any

import pytest

from omni_kube.matching import find_difference, parse_quantity
from support.tables import each_row

Json = dict[str, Any]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        (1, 1),
        (0.5, Fraction(1, 2)),
        ("1000m", 1),
        ("0.5", Fraction(1, 2)),
        ("500m", Fraction(1, 2)),
        (".5", Fraction(1, 2)),
        ("1Gi", 2**30),
        ("1024Mi", 2**30),
        ("1.5Gi", 3 * 2**29),
        ("1G", 10**9),
        ("1e3", 1000),
        ("1E3", 1000),
        ("2E", 2 * 10**18),
        ("100n", Fraction(1, 10**7)),
        ("-1", -1),
    ],
)
def test_quantities(text: object, value: Fraction) -> None:
    assert parse_quantity(text) == value


@pytest.mark.parametrize("text", ["", "Gi", "1 Gi", "1gi", "one", True, None, ["1"], "1e9999"])
def test_no_quantities(text: object) -> None:
    assert parse_quantity(text) is None


def live() -> Json:
    """Returns a Deployment as the API server returns it."""
    return {
        "metadata": {
            "name": "a",
            "labels": {"mine": "1", "theirs": "2"},
            "ownerReferences": [{"uid": "u1", "controller": True}, {"uid": "u2"}],
        },
        "spec": {
            "replicas": 2,
            "strategy": {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": "25%"}, "type": "RollingUpdate"},
            "template": {
                "spec": {
                    "restartPolicy": "Always",
                    "containers": [
                        {"name": "sidecar", "image": "proxy"},
                        {
                            "name": "stage",
                            "image": "stage:1",
                            "args": ["serve", "--config", "x"],
                            "env": [{"name": "EXTRA", "value": "1"}, {"name": "HOME", "value": "/home"}],
                            "ports": [
                                {"containerPort": 9090, "protocol": "TCP", "name": "metrics"},
                                {"containerPort": 50051, "protocol": "TCP", "name": "grpc"},
                            ],
                            "resources": {"limits": {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "1"}},
                            "volumeMounts": [{"name": "b", "mountPath": "/b"}, {"name": "a", "mountPath": "/a"}],
                            "securityContext": {"readOnlyRootFilesystem": True, "privileged": False},
                        },
                    ],
                    "volumes": [
                        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "2Gi"}},
                        {"name": "cfg", "configMap": {"name": "c", "defaultMode": 420}},
                    ],
                    "tolerations": [{"key": "gpu", "operator": "Exists"}],
                    "topologySpreadConstraints": [
                        {"topologyKey": "host", "whenUnsatisfiable": "ScheduleAnyway", "maxSkew": 1}
                    ],
                }
            },
        },
        "status": {"replicas": 2},
    }


def desired() -> Json:
    """Returns the manifest of that Deployment, in the form in which the operator's builder writes it."""
    return {
        "metadata": {"name": "a", "labels": {"mine": "1"}, "ownerReferences": [{"uid": "u1", "controller": True}]},
        "spec": {
            "replicas": 2,
            "strategy": {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": "25%"}},
            "template": {
                "spec": {
                    "containers": [
                        {
                            "name": "stage",
                            "image": "stage:1",
                            "args": ["serve", "--config", "x"],
                            "env": [{"name": "HOME", "value": "/home"}],
                            "ports": [{"containerPort": 50051, "name": "grpc"}, {"containerPort": 9090}],
                            "resources": {"limits": {"cpu": "1000m", "memory": "1024Mi", "nvidia.com/gpu": 1}},
                            "volumeMounts": [{"name": "a", "mountPath": "/a"}, {"name": "b", "mountPath": "/b"}],
                            "securityContext": {"readOnlyRootFilesystem": True},
                        }
                    ],
                    "volumes": [
                        {"name": "cfg", "configMap": {"name": "c"}},
                        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "2048Mi"}},
                    ],
                    "tolerations": [{"key": "gpu", "operator": "Exists"}],
                    "topologySpreadConstraints": [
                        {"topologyKey": "host", "whenUnsatisfiable": "ScheduleAnyway", "maxSkew": 1}
                    ],
                }
            },
        },
    }


def test_defaults_order_and_spelling_are_no_difference() -> None:
    assert find_difference(desired(), live()) is None


@pytest.mark.parametrize("name", ["selector", "podSelector"])
def test_a_key_added_to_a_selector_is_a_difference(name: str) -> None:
    """A selector is an atomic map. Labels and annotations are not: other managers may add keys to them."""
    written, stored = {"spec": {name: {"a": "1"}}}, {"spec": {name: {"a": "1", "b": "2"}}}
    assert find_difference(written, stored) == f"spec.{name}.b"
    below = {"spec": {name: {"matchLabels": {"a": "1"}}}}, {"spec": {name: {"matchLabels": {"a": "1", "b": "2"}}}}
    assert find_difference(*below) == f"spec.{name}.matchLabels.b"
    assert find_difference({"labels": {"a": "1"}}, {"labels": {"a": "1", "b": "2"}}) is None


def test_a_field_added_to_a_rule_is_a_difference() -> None:
    written = {"ingress": [{"from": [{"podSelector": {}}]}]}
    stored = {"ingress": [{"from": [{"podSelector": {}, "namespaceSelector": {}}]}]}
    assert find_difference(written, stored) == "ingress[0].from[0].namespaceSelector"


@pytest.mark.parametrize(
    ("written", "stored", "same"),
    [("0.0105", "11m", True), ("100u", "1m", True), ("0.011", "10m", False), ("0.55555Gi", "596517270324m", True)],
)
def test_the_api_server_rounds_resources_up_to_thousandths(written: str, stored: str, same: bool) -> None:
    difference = find_difference({"requests": {"cpu": written}}, {"requests": {"cpu": stored}})
    assert (difference is None) is same


STAGE = "spec.template.spec.containers[name=stage]"
POD = ("spec", "template", "spec")


def _stage(manifest: Json) -> Json:
    found: Json = manifest["spec"]["template"]["spec"]["containers"][-1]
    return found


EDITS: dict[str, tuple[Any, str]] = {
    "replicas": (lambda m: m["spec"].update(replicas=3), "spec.replicas"),
    "replicas removed": (lambda m: m["spec"].pop("replicas"), "spec.replicas"),
    "label changed": (lambda m: m["metadata"]["labels"].update(mine="2"), "metadata.labels.mine"),
    "label removed": (lambda m: m["metadata"]["labels"].pop("mine"), "metadata.labels.mine"),
    "owner removed": (lambda m: m["metadata"].pop("ownerReferences"), "metadata.ownerReferences"),
    "another owner": (
        lambda m: m["metadata"]["ownerReferences"][0].update(uid="u9"),
        "metadata.ownerReferences[uid=u1]",
    ),
    "image": (lambda m: _stage(m).update(image="stage:2"), f"{STAGE}.image"),
    "container renamed": (lambda m: _stage(m).update(name="other"), STAGE),
    "env changed": (lambda m: _stage(m)["env"][1].update(value="/x"), f"{STAGE}.env[name=HOME].value"),
    "env removed": (lambda m: _stage(m)["env"].pop(1), f"{STAGE}.env[name=HOME]"),
    "argument added": (lambda m: _stage(m)["args"].append("--debug"), f"{STAGE}.args"),
    "argument changed": (lambda m: _stage(m)["args"].__setitem__(2, "y"), f"{STAGE}.args[2]"),
    "port's protocol": (lambda m: _stage(m)["ports"][1].update(protocol="UDP"), f"{STAGE}.ports[containerPort=50051]"),
    "memory": (lambda m: _stage(m)["resources"]["limits"].update(memory="2Gi"), f"{STAGE}.resources.limits.memory"),
    "no quantity": (lambda m: _stage(m)["resources"]["limits"].update(cpu="x"), f"{STAGE}.resources.limits.cpu"),
    "gpu": (
        lambda m: _stage(m)["resources"]["limits"].update({"nvidia.com/gpu": "2"}),
        f"{STAGE}.resources.limits.nvidia.com/gpu",
    ),
    "mount": (lambda m: _stage(m)["volumeMounts"].pop(1), f"{STAGE}.volumeMounts[mountPath=/a]"),
    "security": (
        lambda m: _stage(m)["securityContext"].update(readOnlyRootFilesystem=False),
        f"{STAGE}.securityContext.readOnlyRootFilesystem",
    ),
    "number for a truth": (
        lambda m: _stage(m)["securityContext"].update(readOnlyRootFilesystem=1),
        f"{STAGE}.securityContext.readOnlyRootFilesystem",
    ),
    "map for a text": (lambda m: _stage(m).update(image={"x": 1}), f"{STAGE}.image"),
    "text for a map": (lambda m: _stage(m).update(resources="x"), f"{STAGE}.resources"),
    "text for a list": (lambda m: _stage(m).update(args="x"), f"{STAGE}.args"),
    "size of memory": (
        lambda m: m["spec"]["template"]["spec"]["volumes"][0]["emptyDir"].update(sizeLimit="3Gi"),
        "spec.template.spec.volumes[name=shm].emptyDir.sizeLimit",
    ),
    "percentage": (
        lambda m: m["spec"]["strategy"]["rollingUpdate"].update(maxUnavailable="50%"),
        "spec.strategy.rollingUpdate.maxUnavailable",
    ),
    "number to text": (
        lambda m: m["spec"]["strategy"]["rollingUpdate"].update(maxSurge="1"),
        "spec.strategy.rollingUpdate.maxSurge",
    ),
    "toleration added": (
        lambda m: m["spec"]["template"]["spec"]["tolerations"].append({"operator": "Exists"}),
        "spec.template.spec.tolerations",
    ),
}


@each_row("name", EDITS)
def test_hand_edits_are_seen(name: str) -> None:
    edit, path = EDITS[name]
    changed = live()
    edit(changed)
    assert find_difference(desired(), changed) == path


def test_rules_of_a_network_policy_are_a_list_in_order() -> None:
    """In a NetworkPolicy's rules, ports are compared in order and are not matched by key."""
    rule: Json = {"from": [{"podSelector": {"matchLabels": {"a": "b"}}}], "ports": [{"port": 50051}, {"port": 9090}]}
    wanted = {"spec": {"podSelector": {}, "ingress": [rule], "policyTypes": ["Ingress"]}}
    seen = copy.deepcopy(wanted)
    for port in seen["spec"]["ingress"][0]["ports"]:  # type: ignore[index]
        port["protocol"] = "TCP"
    assert find_difference(wanted, seen) is None
    seen["spec"]["ingress"][0]["ports"].reverse()  # type: ignore[index]
    assert find_difference(wanted, seen) == "spec.ingress[0].ports[0].port"
    opened = copy.deepcopy(wanted)
    opened["spec"]["ingress"].append({})  # type: ignore[attr-defined]
    assert find_difference(wanted, opened) == "spec.ingress"


def test_ports_of_a_service() -> None:
    wanted = {"spec": {"ports": [{"name": "grpc", "port": 50051, "targetPort": "grpc"}]}}
    seen = {
        "spec": {"ports": [{"name": "grpc", "port": 50051, "targetPort": "grpc", "protocol": "TCP", "nodePort": 3}]}
    }
    assert find_difference(wanted, seen) is None
    assert find_difference({"spec": {"ports": []}}, seen) == "spec.ports"


def test_a_float_equals_its_integer() -> None:
    assert find_difference({"a": 1}, {"a": 1.0}) is None
    assert find_difference({"a": None}, {"a": 0}) == "a"
