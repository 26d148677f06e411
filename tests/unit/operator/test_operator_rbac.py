"""The shipped roles grant the rights that the operator needs, and none that would allow escalation.

tests/controlplane/operator/test_operator_verbs.py checks which verbs the operator uses.
"""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from omni_operator.kinds import CHILD_KINDS
from omni_operator.process.settings import OperatorSettings

FILES = ("namespaced", "cluster")
FORBIDDEN_VERBS = {"*", "escalate", "bind", "impersonate", "deletecollection"}
FORBIDDEN_RESOURCES = {"*", "secrets", "roles", "rolebindings", "clusterroles", "clusterrolebindings", "pods/exec"}
CHILD_VERBS = {"get", "list", "watch", "create", "patch", "delete"}


@pytest.fixture(params=FILES)
def documents(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    path = request.config.rootpath / "manifests" / "rbac" / f"{request.param}.yaml"
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def roles_of(documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [document for document in documents if document["kind"] in ("Role", "ClusterRole")]


def granted(documents: list[dict[str, Any]]) -> dict[tuple[str, str], set[str]]:
    verbs: dict[tuple[str, str], set[str]] = {}
    for role in roles_of(documents):
        for rule in role["rules"]:
            for group in rule["apiGroups"]:
                for resource in rule["resources"]:
                    verbs.setdefault((group, resource), set()).update(rule["verbs"])
    return verbs


def test_no_wildcard_no_secret_no_way_up(documents: list[dict[str, Any]]) -> None:
    """The roles have no wildcards, no access to Secrets and no verbs for privilege escalation."""
    for (group, resource), verbs in granted(documents).items():
        assert group != "*"
        assert resource not in FORBIDDEN_RESOURCES
        assert not verbs & FORBIDDEN_VERBS


def test_children_are_written_and_nothing_else(documents: list[dict[str, Any]]) -> None:
    verbs = granted(documents)
    for kind in CHILD_KINDS:
        assert verbs.pop((kind.group, kind.plural)) == CHILD_VERBS
    assert verbs == {
        ("omnipipeline.io", "omnipipelines"): {"get", "list", "watch"},
        ("omnipipeline.io", "omnipipelines/status"): {"patch"},
        ("omnipipeline.io", "omnistages/status"): {"patch"},
        ("omnipipeline.io", "omnipipelines/finalizers"): {"update"},
        ("", "pods"): {"list", "watch"},
        ("apps", "replicasets"): {"list", "watch"},
        ("discovery.k8s.io", "endpointslices"): {"list", "watch"},
        ("", "events"): {"create"},
        ("coordination.k8s.io", "leases"): {"get", "create", "update"},
    }


def test_the_lease_is_the_one_that_the_operator_takes(documents: list[dict[str, Any]]) -> None:
    named = [names for role in roles_of(documents) for rule in role["rules"] if (names := rule.get("resourceNames"))]
    assert named == [[OperatorSettings().lease_name]]


def test_each_role_is_bound_to_the_operator_s_account(documents: list[dict[str, Any]]) -> None:
    account = next(document for document in documents if document["kind"] == "ServiceAccount")["metadata"]
    bindings = [document for document in documents if document["kind"].endswith("Binding")]
    assert {(binding["roleRef"]["kind"], binding["roleRef"]["name"]) for binding in bindings} == {
        (role["kind"], role["metadata"]["name"]) for role in roles_of(documents)
    }
    for binding in bindings:
        assert binding["subjects"] == [{"kind": "ServiceAccount", **account}]


def test_both_files_grant_the_same(request: pytest.FixtureRequest) -> None:
    folder = request.config.rootpath / "manifests" / "rbac"
    one, other = (granted(list(yaml.safe_load_all((folder / f"{name}.yaml").read_text()))) for name in FILES)
    assert one == other


def test_only_the_cluster_file_reaches_beyond_its_namespace(request: pytest.FixtureRequest) -> None:
    documents = yaml.safe_load_all((request.config.rootpath / "manifests" / "rbac" / "namespaced.yaml").read_text())
    assert all(document["metadata"]["namespace"] == "omnipipeline-system" for document in documents)
