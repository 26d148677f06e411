"""One control plane for the whole session, a namespace of its own for every test.

Test modules carry `pytestmark = pytest.mark.controlplane`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.controlplane.api import Api
from support.controlplane.api_server import ApiServer
from support.controlplane.control_plane import ControlPlane

CRDS = Path(__file__).resolve().parents[2] / "manifests" / "crd"
_numbers = itertools.count()


@pytest.fixture(scope="session")
def api_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """etcd and kube-apiserver with our CRD, nothing else: for what the API itself decides. Cheap."""
    with ApiServer(tmp_path_factory.mktemp("api-server")) as server:
        server.apply_crds(*sorted(CRDS.glob("*.yaml")))
        yield server


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Everything, with our CRD and one node of 64 GPUs. A test that stops or overloads it starts its own."""
    with ControlPlane(tmp_path_factory.mktemp("control-plane")) as plane:
        plane.apply_crds(*sorted(CRDS.glob("*.yaml")))
        yield plane


@pytest.fixture
def api(control_plane: ControlPlane, request: pytest.FixtureRequest) -> Iterator[Api]:
    """The administrator's client in a fresh namespace of `control_plane`; the namespace goes after the test."""
    client = control_plane.create_namespace(_namespace_name(request.node.name))
    yield client
    control_plane.admin.delete("Namespace", client.namespace)


def _namespace_name(test: str) -> str:
    slug = re.sub(r"[^a-z0-9]+", "-", test.lower()).strip("-")[:40].strip("-")
    return f"t{next(_numbers)}-{slug}"
