"""docs/security.md lists the real ports and says what is plaintext. The YAML of docs/tls.md works."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from omni_operator import names
from omni_operator.desired.revision import compute_revision
from omni_operator.process.settings import OperatorSettings
from omni_proto.pipeline.read.offline import parse_checked
from omni_proto.pod_contract import GRPC_PORT, HEALTH_PORT, METRICS_PORT
from omni_proto.stage_config import Listen
from support.docs.doc_examples import EXAMPLES
from support.operator.network_policies import PodPeer, is_allowed
from support.operator.operator_pipelines import OWNER, SETTINGS, build_all, make_pipeline

GATEWAY_PORT = 8000
PLAINTEXT = "unauthenticated plaintext inside the cluster"


@pytest.fixture
def root(request: pytest.FixtureRequest) -> Path:
    return request.config.rootpath


@pytest.fixture
def page(root: Path) -> str:
    return (root / "docs" / "security.md").read_text()


@pytest.fixture
def tls_page(root: Path) -> str:
    return (root / "docs" / "tls.md").read_text()


def test_ports_are_those_that_are_listened_on(page: str, root: Path) -> None:
    table = re.findall(r"^\| ([a-z ]+) \| (\d+) \| ", page, re.MULTILINE)
    stage, operator = Listen(), OperatorSettings()
    chart = "".join(file.read_text() for file in sorted((root / "helm/omnipipeline/templates").glob("*.yaml")))
    assert (stage.grpc_port, stage.health_port, stage.metrics_port) == (GRPC_PORT, HEALTH_PORT, METRICS_PORT)
    assert [(pod, int(port)) for pod, port in table] == [
        ("entry stage", stage.grpc_port),
        ("other stages", stage.grpc_port),
        ("every stage", stage.health_port),
        ("every stage", stage.metrics_port),
        ("operator", operator.health_port),
        ("operator", operator.metrics_port),
        ("gateway", GATEWAY_PORT),
        ("gateway", GRPC_PORT),
    ]
    in_chart = {int(port) for port in re.findall(r"containerPort: (\d+)", chart)}
    assert in_chart == {operator.health_port, operator.metrics_port, GATEWAY_PORT, GRPC_PORT}


def test_plaintext_is_stated_where_users_look(page: str, root: Path) -> None:
    notes = (root / "helm" / "omnipipeline" / "templates" / "NOTES.txt").read_text()
    for text in (page, notes):
        assert PLAINTEXT in " ".join(text.split())
    assert "docs/security.md" in notes


def yaml_of(page: str) -> list[Any]:
    """Returns the YAML blocks of a page, in order."""
    return [yaml.safe_load(block) for block in re.findall(r"^```yaml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)]


def test_the_yaml_is_a_pipelines(tls_page: str) -> None:
    blocks = yaml_of(tls_page)
    entry = next(block["spec"]["entry"] for block in blocks if "kind" not in block)
    pipeline = yaml.safe_load(EXAMPLES["pipelines-encrypted"])
    pipeline["spec"]["entry"] = entry
    assert parse_checked(yaml.safe_dump(pipeline)).spec.entry.tls
    certificate = next(block for block in blocks if block.get("kind") == "Certificate")
    assert certificate["spec"]["secretName"] == entry["tls"]["secretName"]
    assert all(
        name.startswith(("omni.models.svc", "omni-headless.models.svc")) for name in certificate["spec"]["dnsNames"]
    )


def test_the_policies_for_a_mesh_open_what_a_mesh_needs(tls_page: str) -> None:
    """With the page's policies, stages reach the mesh's control plane and the tunnel ports of the other stages. Clients
    reach only the tunnel port of the entry stage."""
    pipeline = make_pipeline(name="omni")
    revision = compute_revision(pipeline, SETTINGS.default_image)
    own = [child for child in build_all(pipeline) if child["kind"] == "NetworkPolicy"]
    mesh = [block for block in yaml_of(tls_page) if block.get("kind") == "NetworkPolicy"]
    thinker, talker = (
        PodPeer(OWNER.namespace, names.stage_selector("omni", stage, revision)) for stage in ("thinker", "talker")
    )
    istiod, client, neighbour = PodPeer("istio-system"), PodPeer("apps"), PodPeer(OWNER.namespace, {"app": "notebook"})
    for source, destination, port, opened in (
        (thinker, istiod, 15012, True),
        (thinker, talker, 15008, True),
        (client, thinker, 15008, True),
        (client, talker, 15008, False),
        (neighbour, talker, 15008, False),
        (thinker, neighbour, 15008, False),
        (thinker, client, 15012, False),
    ):
        assert not is_allowed(own, source, destination, port)
        assert is_allowed([*own, *mesh], source, destination, port) is opened, (source, destination, port)
