"""One control plane for the whole session, a namespace of its own for every test.

Test modules carry `pytestmark = pytest.mark.controlplane`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.controlplane.api import Api
from support.controlplane.api_server import ApiServer
from support.controlplane.control_plane import ControlPlane
from support.controlplane.fault_proxy import FaultProxy
from support.controlplane.operators import MANIFESTS, OperatorProcess, grant_operator

CRDS = MANIFESTS / "crd"
_numbers = itertools.count()


@pytest.fixture(scope="session")
def api_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """etcd and kube-apiserver with our CRD, nothing else: for what the API itself decides. Cheap."""
    with ApiServer(tmp_path_factory.mktemp("api-server"), crds=sorted(CRDS.glob("*.yaml"))) as server:
        yield server


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Everything, with our CRD and one node of 64 GPUs. A test that stops the API server starts it again."""
    with ControlPlane(tmp_path_factory.mktemp("control-plane"), crds=sorted(CRDS.glob("*.yaml"))) as plane:
        yield plane


@pytest.fixture
def api(control_plane: ControlPlane, request: pytest.FixtureRequest) -> Iterator[Api]:
    """The administrator's client in a fresh namespace of `control_plane`; the namespace goes after the test."""
    # A program that an earlier test left dead is named here, and not by tests that wait for pods in vain.
    control_plane.require_running()
    client = control_plane.create_namespace(_namespace_name(request.node.name))
    yield client
    control_plane.admin.delete("Namespace", client.namespace)


@pytest.fixture
def proxy(control_plane: ControlPlane) -> Iterator[FaultProxy]:
    """A faulty proxy in front of `control_plane`."""
    with FaultProxy(control_plane) as running:
        yield running


@pytest.fixture
def make_operator(control_plane: ControlPlane, api: Api, tmp_path: Path) -> Iterator[Callable[..., OperatorProcess]]:
    """make_operator(*flags, server=..., identity=...) -> an operator of the test's namespace only, not yet started.

    It may do what the shipped Role lets it. Whatever still runs after the test is killed.
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
    """An operator of the test's namespace, running."""
    with make_operator() as running:
        yield running


def _namespace_name(test: str) -> str:
    slug = re.sub(r"[^a-z0-9]+", "-", test.lower()).strip("-")[:40].strip("-")
    return f"t{next(_numbers)}-{slug}"
