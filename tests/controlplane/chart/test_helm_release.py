"""Releases of the chart by the real Helm: install, upgrade, rollback, uninstall, and their effects on pipelines.

A local process with the command, environment and rights from the chart stands in for the operator's pod.
"""

from __future__ import annotations

import base64
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from support.controlplane.charts.helm import CHART, NAMESPACE, RELEASE, ROOT, VERSION, Helm, Manifest
from support.controlplane.charts.operator_pods import OperatorPods, pod_uids
from support.controlplane.control_plane import ControlPlane
from support.controlplane.pipelines import build_pipeline, condition_of, list_children, wait_condition, wait_settled
from support.controlplane.server.api import Api, eventually
from support.processes.polling import PATIENCE_S

pytestmark = pytest.mark.controlplane

CRD = "omnipipelines.omnipipeline.io"
(OLD_PACKAGE,) = (ROOT / "tests" / "data" / "releases").glob("omnipipeline-*.tgz")
OLD_VERSION = OLD_PACKAGE.stem.removeprefix("omnipipeline-")
NEXT_VERSION = "0.2.0"
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
Run = Callable[..., str]


@pytest.fixture
def models(plane: ControlPlane) -> Api:
    """Returns a client in a namespace for pipelines, beside that of the operator."""
    plane.create_namespace(NAMESPACE, labels=RESTRICTED)
    return plane.create_namespace("models", labels=RESTRICTED)


@pytest.fixture
def pods(plane: ControlPlane, tmp_path: Path) -> Iterator[OperatorPods]:
    with OperatorPods(plane, tmp_path) as pods:
        yield pods


@pytest.fixture
def helm(plane: ControlPlane, models: Api, pods: OperatorPods, tmp_path: Path) -> Run:
    """Returns helm(*arguments, fails=False), which returns Helm's output and starts or stops the operator's process."""
    binary = Helm(tmp_path).binary
    environment = {**os.environ, "HOME": str(tmp_path), "KUBECONFIG": str(plane.kubeconfig)}
    environment["HELM_NAMESPACE"] = NAMESPACE

    def run(*arguments: str | Path, fails: bool = False) -> str:
        done = pods.run(f"{binary} {' '.join(map(str, arguments))}", environment)
        assert (done.returncode != 0) == fails, done.stdout
        return done.stdout

    return run


@pytest.fixture
def old_chart() -> Path:
    """Returns the chart's package of the previous release, as it was published (docs/releases.md)."""
    return OLD_PACKAGE


@pytest.fixture
def next_chart(tmp_path: Path) -> Path:
    """Returns a chart that stands for a later version, whose CRD has fields that this operator does not know.

    The stand-in for the operator's pod still runs this version: it is the operator that serves until the new one
    starts.
    """
    chart = tmp_path / "next" / "omnipipeline"
    shutil.copytree(CHART, chart)
    about = yaml.safe_load((chart / "Chart.yaml").read_text())
    (chart / "Chart.yaml").write_text(yaml.safe_dump({**about, "version": NEXT_VERSION}))
    crd = yaml.safe_load((chart / "files" / "crd.yaml").read_text())
    (version,) = crd["spec"]["versions"]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    spec["scaling"] = {"type": "object", "default": {}, "properties": {"minimum": {"type": "integer", "default": 1}}}
    spec["stages"]["items"]["properties"]["adapters"] = {"type": "string", "default": "none"}
    (chart / "files" / "crd.yaml").write_text(yaml.safe_dump(crd))
    return chart


def without_image(name: str) -> Manifest:
    """Returns a pipeline that runs on the operator's default image."""
    manifest = build_pipeline(name)
    del manifest["spec"]["defaults"]
    return manifest


def images_of(api: Api, name: str) -> set[str]:
    children = list_children(api, name)
    deployments = [child for (kind, _), child in children.items() if kind == "Deployment"]
    return {item["spec"]["template"]["spec"]["containers"][0]["image"] for item in deployments}


def served_schema(plane: ControlPlane) -> Manifest:
    (version,) = plane.admin.get("CustomResourceDefinition", CRD)["spec"]["versions"]
    return dict(version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"])


@pytest.mark.full  # on a real node: cluster/test_e2e_uninstall.py
def test_install_test_uninstall_and_again(helm: Run, pods: OperatorPods, plane: ControlPlane, models: Api) -> None:
    said = helm("install", RELEASE, CHART, "--wait")
    assert "STATUS: deployed" in said
    assert "unauthenticated plaintext" in said
    # Helm stores the chart and its manifests in one Secret, which can have at most 1 MiB.
    (secret,) = plane.admin.list("Secret", "owner=helm", NAMESPACE)
    assert sum(len(base64.b64decode(value)) for value in secret["data"].values()) < 512 * 1024
    assert "Phase:          Succeeded" in helm("test", RELEASE, "--timeout=120s")
    models.apply(without_image("omni"))
    wait_settled(models)
    assert images_of(models, "omni") == {f"omnipipeline-stage:{VERSION}"}
    before = pod_uids(models)
    assert len(before) == 3

    said = helm("uninstall", RELEASE, "--wait")
    assert "[CustomResourceDefinition] omnipipelines.omnipipeline.io" in said
    # The CRD, the pipelines and their pods, the operator's Lease and the namespace stay.
    assert wait_settled(models)["metadata"]["name"] == "omni"
    assert pod_uids(models) == before
    system = plane.admin.in_namespace(NAMESPACE)
    eventually(lambda: system.list("Pod") == [], why="the operator's pod is deleted")
    left = {kind for kind in LISTED if [item for item in system.list(kind) if is_ours(item)]}
    assert left == {"Lease"}
    for kind in ("ClusterRole", "ClusterRoleBinding"):
        assert [item for item in plane.admin.list(kind) if is_ours(item)] == []

    # Without an operator nothing is healed. A new install adopts the CRD and the pipelines, and restarts no pod.
    models.delete("Service", "omni")
    helm("install", RELEASE, CHART, "--wait")
    eventually(lambda: models.find("Service", "omni"), why="healed")
    wait_settled(models)
    assert pod_uids(models) == before


LISTED = (
    "Deployment",
    "Service",
    "ServiceAccount",
    "Role",
    "RoleBinding",
    "NetworkPolicy",
    "ConfigMap",
    "Secret",
    "Lease",
)


def is_ours(manifest: Manifest) -> bool:
    return "omnipipeline" in manifest["metadata"]["name"]


def test_upgrade_of_the_chart_and_its_crd_and_back(
    helm: Run, old_chart: Path, pods: OperatorPods, plane: ControlPlane, models: Api
) -> None:
    helm("install", RELEASE, old_chart, "--wait")
    assert "env" not in served_schema(plane)["defaults"]["properties"]
    newer = build_pipeline("new")
    newer["spec"]["defaults"] |= {"env": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}]}
    assert "env" not in models.create(newer)["spec"]["defaults"], "pruned"
    models.delete("OmniPipeline", "new")
    models.apply(build_pipeline("pinned"))
    models.apply(without_image("follows"))
    for name in ("pinned", "follows"):
        wait_settled(models, name)
    assert images_of(models, "follows") == {f"omnipipeline-stage:{OLD_VERSION}"}
    pinned = pod_uids(models, "omnipipeline.io/pipeline=pinned")
    uid = models.get("OmniPipeline", "pinned")["metadata"]["uid"]

    helm("upgrade", RELEASE, CHART, "--wait")
    assert "env" in served_schema(plane)["defaults"]["properties"]
    eventually(
        lambda: images_of(models, "follows") == {f"omnipipeline-stage:{VERSION}"}, why="the default image is new"
    )
    wait_settled(models, "follows")
    assert models.apply(newer)["spec"]["defaults"]["env"] == newer["spec"]["defaults"]["env"]
    wait_settled(models, "new")

    helm("rollback", RELEASE, "1", "--wait")
    assert "env" not in served_schema(plane)["defaults"]["properties"]
    eventually(lambda: images_of(models, "follows") == {f"omnipipeline-stage:{OLD_VERSION}"}, why="the old image")
    for name in ("pinned", "follows", "new"):
        wait_settled(models, name)
    # A pipeline that names its image keeps its pods throughout.
    assert pod_uids(models, "omnipipeline.io/pipeline=pinned") == pinned
    assert models.get("OmniPipeline", "pinned")["metadata"]["uid"] == uid


def test_while_only_the_crd_is_upgraded_everything_is_healed(
    helm: Run, next_chart: Path, pods: OperatorPods, plane: ControlPlane, models: Api
) -> None:
    """Helm applies the new CRD before the new operator runs, which may take long or fail; then it is rolled back."""
    helm("install", RELEASE, CHART, "--wait")
    models.apply(build_pipeline())
    before = wait_settled(models)
    running = pod_uids(models)
    helm("upgrade", RELEASE, next_chart, "--wait")
    understood = wait_condition(models, "SpecUnderstood", status="False", reason="UnknownFields", timeout_s=PATIENCE_S)
    assert "spec.scaling" in understood["message"]
    assert "spec.stages[0].adapters" in understood["message"]
    assert condition_of(wait_settled(models), "Ready") == condition_of(before, "Ready")
    models.delete("Service", "omni")
    eventually(lambda: models.find("Service", "omni"), why="healed")
    models.apply(build_pipeline("later"))
    wait_settled(models, "later")

    helm("rollback", RELEASE, "1", "--wait")
    eventually(
        lambda: not condition_of(models.get("OmniPipeline", "omni"), "SpecUnderstood"), why="the condition is gone"
    )
    for name in ("omni", "later"):
        wait_settled(models, name)
    assert running <= pod_uids(models)


@pytest.mark.full  # on a real node, under load: cluster/test_e2e_uninstall.py
def test_an_upgrade_that_keeps_the_stage_image_restarts_no_stage(
    helm: Run, old_chart: Path, pods: OperatorPods, models: Api
) -> None:
    image = "--set stageImage.repository=registry.example/stage,stageImage.tag=stable"
    helm("install", RELEASE, old_chart, "--wait", image)
    models.apply(without_image("omni"))
    wait_settled(models)
    before = pod_uids(models)
    helm("upgrade", RELEASE, CHART, "--wait", "--reset-then-reuse-values")
    operator = pods.operator(NAMESPACE)
    operator.child.wait_until(operator.is_ready)
    operator.wait_reconciled()
    wait_settled(models)
    assert pod_uids(models) == before
    assert images_of(models, "omni") == {"registry.example/stage:stable"}


def test_what_plain_manifests_made_is_taken_over_when_asked(helm: Run, plane: ControlPlane, models: Api) -> None:
    """Helm adopts objects of manifests or of another release only with --take-ownership."""
    plane.kubectl("apply", "-k", ROOT / "manifests")
    plane.wait_served(CRD)
    models.apply(build_pipeline())
    said = helm("install", RELEASE, CHART, fails=True)
    assert "invalid ownership metadata" in said
    helm("install", RELEASE, CHART, "--take-ownership", "--wait")
    wait_settled(models)
    before = pod_uids(models)
    assert owner_of(plane) == RELEASE
    helm("uninstall", RELEASE, "--wait")

    # A release with another name adopts the objects that the first release left only with --take-ownership.
    assert "invalid ownership metadata" in helm("install", "other", CHART, fails=True)
    helm("install", "other", CHART, "--take-ownership", "--wait")
    assert owner_of(plane) == "other"
    wait_settled(models)
    assert pod_uids(models) == before


def owner_of(plane: ControlPlane) -> str:
    """Returns the Helm release that the CRD belongs to. Checks that Helm never deletes the CRD."""
    annotations = plane.admin.get("CustomResourceDefinition", CRD)["metadata"]["annotations"]
    assert annotations["helm.sh/resource-policy"] == "keep"
    return str(annotations["meta.helm.sh/release-name"])


def test_a_tenants_operator_serves_its_namespaces_alone(
    helm: Run, pods: OperatorPods, plane: ControlPlane, models: Api
) -> None:
    """An operator with watchNamespaces serves only these namespaces, and logs no error."""
    plane.apply_crds(*(ROOT / "manifests" / "crd").glob("*.yaml"))
    other = plane.create_namespace("others")
    own = "--set crds.install=false,rbac.aggregate=false"
    helm("install", RELEASE, CHART, own, "--set", f"'watchNamespaces={{{models.namespace}}}'", "--wait")
    for api in (models, other):
        api.apply(build_pipeline())
    wait_settled(models)
    assert list_children(other) == {}
    assert other.get("OmniPipeline", "omni")["status"] == {"observedGeneration": 0}
    log = pods.operator(NAMESPACE).log.read_text()
    assert f"serving {models.namespace}" in log
    assert '"ERROR"' not in log


def test_a_namespace_that_is_not_there_is_named(helm: Run) -> None:
    said = helm("install", RELEASE, CHART, "--set", "'watchNamespaces={nowhere}'", fails=True)
    assert 'namespaces "nowhere" not found' in said
