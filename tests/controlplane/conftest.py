"""One control plane for the whole session, and a separate namespace for each test.

Test modules set `pytestmark = pytest.mark.controlplane`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from support.controlplane.binaries import gateway_api_crds
from support.controlplane.control_plane import ControlPlane
from support.controlplane.operators import MANIFESTS, OperatorProcess, grant_operator
from support.controlplane.server.api import Api, eventually
from support.controlplane.server.api_server import ApiServer
from support.controlplane.server.fault_proxy import FaultProxy

CRDS = MANIFESTS / "crd"
GATEWAY_API = "gateway.networking.k8s.io"
_numbers = itertools.count()


@pytest.fixture(scope="session")
def api_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """Yields only etcd and kube-apiserver with our CRD, for tests of the API itself. They start quickly."""
    with ApiServer(tmp_path_factory.mktemp("api-server"), crds=sorted(CRDS.glob("*.yaml"))) as server:
        yield server


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Yields the whole control plane, with our CRD and one node of 64 GPUs.

    A test that stops the API server must start it again.
    """
    with ControlPlane(tmp_path_factory.mktemp("control-plane"), crds=sorted(CRDS.glob("*.yaml"))) as plane:
        yield plane


@pytest.fixture
def api(control_plane: ControlPlane, request: pytest.FixtureRequest) -> Iterator[Api]:
    """Yields the administrator's client in a fresh namespace of `control_plane`, which is deleted after the test."""
    # Fails here if a program of the control plane died in an earlier test. Otherwise later tests would time out while
    # they wait for pods.
    control_plane.require_running()
    client = control_plane.create_namespace(_namespace_name(request.node.name))
    yield client
    control_plane.admin.delete("Namespace", client.namespace)


@pytest.fixture
def gateway_api(control_plane: ControlPlane) -> Iterator[None]:
    """Adds the Gateway API's own CRDs to the cluster for the test."""
    control_plane.apply_crds(*gateway_api_crds())
    yield
    for file in gateway_api_crds():
        control_plane.admin.delete("CustomResourceDefinition", yaml.safe_load(file.read_text())["metadata"]["name"])
    # An operator that starts later must not find the kinds.
    eventually(lambda: GATEWAY_API not in {one["name"] for one in control_plane.admin.call("GET", "/apis")["groups"]})


@pytest.fixture
def proxy(control_plane: ControlPlane) -> Iterator[FaultProxy]:
    """Yields a proxy in front of `control_plane` that can inject faults."""
    with FaultProxy(control_plane) as running:
        yield running


@pytest.fixture
def make_operator(control_plane: ControlPlane, api: Api, tmp_path: Path) -> Iterator[Callable[..., OperatorProcess]]:
    """Yields make_operator(*flags, server=..., identity=...), which returns an operator that is not started yet.

    The operator serves only the test's namespace, with the rights of the shipped Role. It is killed after the test.
    """
    grant_operator(api)
    made: list[OperatorProcess] = []

    def make(*flags: str, server: str | None = None, **options: object) -> OperatorProcess:
        kubeconfig = control_plane.kubeconfig_for_service_account(api.namespace, "omnipipeline-operator", server=server)
        operator = OperatorProcess(kubeconfig, tmp_path, *flags, namespaces=[api.namespace], fork=True, **options)  # type: ignore[arg-type]
        made.append(operator)
        return operator

    yield make
    for operator in made:
        operator.kill()


@pytest.fixture
def operator(make_operator: Callable[..., OperatorProcess]) -> Iterator[OperatorProcess]:
    """Yields a running operator of the test's namespace."""
    with make_operator() as running:
        yield running


def _namespace_name(test: str) -> str:
    slug = re.sub(r"[^a-z0-9]+", "-", test.lower()).strip("-")[:40].strip("-")
    return f"t{next(_numbers)}-{slug}"
