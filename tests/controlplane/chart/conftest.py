"""One helm that renders, and one control plane without our CRDs, for all tests of the chart."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.controlplane.charts.helm import Helm
from support.controlplane.control_plane import ControlPlane
from support.controlplane.server.api import Manifest, eventually

CRDS = ("omnistages.omnipipeline.io", "omnipipelines.omnipipeline.io")
KEPT = {"default", "kube-node-lease", "kube-public", "kube-system"}


@pytest.fixture(scope="session")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """A helm without a cluster, which renders the same values only once."""
    return Helm(tmp_path_factory.mktemp("helm"))


@pytest.fixture(scope="session")
def running_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with ControlPlane(tmp_path_factory.mktemp("chart-plane")) as plane:
        yield plane


@pytest.fixture
def plane(running_plane: ControlPlane) -> Iterator[ControlPlane]:
    """Yields a control plane without installations. What the test leaves is removed, also if the test failed."""
    running_plane.require_running()
    yield running_plane
    _remove_all(running_plane)


def _remove_all(plane: ControlPlane) -> None:
    """Removes all namespaces of tests, the chart's cluster-scoped objects, and then the CRDs."""
    admin = plane.admin

    def list_namespaces() -> list[Manifest]:
        return [item for item in admin.list("Namespace") if item["metadata"]["name"] not in KEPT]

    for namespace in list_namespaces():
        if "deletionTimestamp" not in namespace["metadata"]:
            admin.delete("Namespace", namespace["metadata"]["name"])
    roles = ("clusterroles,clusterrolebindings", "--selector=app.kubernetes.io/part-of=omnipipeline")
    plane.kubectl("delete", *roles, "--wait=false")
    eventually(lambda: not list_namespaces(), why="the namespaces are deleted")
    for name in CRDS:
        if admin.find("CustomResourceDefinition", name):
            admin.delete("CustomResourceDefinition", name)
    eventually(lambda: not any(admin.find("CustomResourceDefinition", name) for name in CRDS), why="the CRDs are gone")
