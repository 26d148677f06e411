"""Typical uses of the real kubectl with pipelines."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from support.controlplane.control_plane import ControlPlane
from support.controlplane.operators import OperatorProcess
from support.controlplane.pipelines import build_pipeline, list_labelled, wait_settled
from support.controlplane.server.api import Api, Manifest, eventually

pytestmark = pytest.mark.controlplane

Kubectl = Callable[..., str]


@pytest.fixture
def kubectl(control_plane: ControlPlane, api: Api) -> Kubectl:
    """Returns kubectl(*arguments, stdin=..., fails=False), which runs kubectl in the test's namespace.

    That function checks the exit status and returns stdout and stderr.
    """

    def run(*arguments: str, stdin: Manifest | None = None, fails: bool = False, code: int | None = None) -> str:
        result = control_plane.kubectl(*arguments, stdin=stdin, namespace=api.namespace, check=False)
        wanted = code if code is not None else int(fails)
        assert result.returncode == wanted, (arguments, result.returncode, result.stdout, result.stderr)
        return result.stdout + result.stderr

    return run


def test_apply_wait_get_describe_diff_delete(api: Api, operator: OperatorProcess, kubectl: Kubectl) -> None:
    manifest = build_pipeline()
    assert "created (server dry run)" in kubectl("apply", "--dry-run=server", "-f", "-", stdin=manifest)
    assert api.find("OmniPipeline", "omni") is None
    assert "omnipipeline.omnipipeline.io/omni created" in kubectl("apply", "-f", "-", stdin=manifest)
    assert "condition met" in kubectl("wait", "--for=condition=Ready", "omni/omni", "--timeout=120s")

    header, row = kubectl("get", "omni").splitlines()
    assert header.split() == ["NAME", "READY", "REASON", "STAGES", "URL", "AGE"]
    assert row.split()[:5] == ["omni", "True", "AllStagesReady", "3/3", f"grpc://omni.{api.namespace}.svc:50051"]
    # OmniPipelines are in the category `all`.
    assert "omnipipeline.omnipipeline.io/omni" in kubectl("get", "all", "-o", "name")

    described = kubectl("describe", "omni", "omni")
    for part in ("Type:                  Ready", "AllStagesReady", "Events:"):
        assert part in described, described
    assert "<none>" not in described.rpartition("Events:")[2]

    assert kubectl("diff", "-f", "-", stdin=manifest) == ""
    manifest["spec"]["stages"][0]["replicas"] = 2
    changed = kubectl("diff", "-f", "-", stdin=manifest, code=1)
    assert "+    replicas: 2" in changed
    assert "configured" in kubectl("apply", "-f", "-", stdin=manifest)
    wait_settled(api)
    pods = json.loads(kubectl("get", "pods", "-l", "omnipipeline.io/stage=thinker", "-o", "json"))["items"]
    assert len(pods) == 2

    kubectl("delete", "omni", "omni")
    eventually(lambda: list_labelled(api) == [])


def test_server_side_apply_and_patch(api: Api, operator: OperatorProcess, kubectl: Kubectl) -> None:
    """Server-side apply by two managers merges a pipeline's stages by name."""
    kubectl("apply", "--server-side", "-f", "-", stdin=build_pipeline())
    partial = build_pipeline(stages=[{"name": "talker", "component": "qwen2_5_omni/talker", "replicas": 2}])
    partial["spec"] = {"stages": partial["spec"]["stages"]}
    # The API server rejects a partial pipeline as a new object, but merges it into an existing one.
    kubectl("apply", "--server-side", "--field-manager=scaler", "-f", "-", stdin=partial)
    stages = api.get("OmniPipeline", "omni")["spec"]["stages"]
    assert {stage["name"]: stage.get("replicas", 1) for stage in stages} == {"thinker": 1, "talker": 2, "token2wav": 1}
    patch = json.dumps({"spec": {"suspend": True}})
    assert "patched" in kubectl("patch", "omni", "omni", "--type=merge", "-p", patch)
    kubectl("wait", "--for=jsonpath={.status.readyStages}=0/3", "omni/omni", "--timeout=120s")


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("omni", "DESCRIPTION"),
        ("omni.spec", "<[]Object> -required-"),
        ("omni.spec.model.uri", "hf://ORG/NAME"),
        ("omni.spec.stages.engineArgs", "maxModelLen"),
        ("omni.spec.stages.inputs", "from"),
        ("omni.spec.rollout.strategy", "BlueGreen"),
        ("omni.status.conditions", "reason"),
    ],
)
def test_explain(kubectl: Kubectl, path: str, says: str) -> None:
    # The API server publishes the schemas of a CRD, which kubectl reads, some time after it serves its objects.
    text = eventually(lambda: kubectl("explain", path))
    assert says in text, text


def test_a_wrong_spec_is_refused_with_the_remedy(kubectl: Kubectl) -> None:
    manifest = build_pipeline()
    manifest["spec"]["stages"][1]["inputs"] = [{"from": "nobody"}]
    assert "nobody" in kubectl("apply", "-f", "-", stdin=manifest, fails=True)
    manifest = build_pipeline()
    manifest["spec"]["stages"][0]["replica"] = 2
    assert 'unknown field "spec.stages[0].replica"' in kubectl("apply", "-f", "-", stdin=manifest, fails=True)
