"""TLS of the entry on a real node: a Secret created late, grpcurl from another pod, renewal without a restart."""

from __future__ import annotations

import base64
from collections.abc import Iterator

import pytest

from support.cluster.client_pod import ClientPod
from support.cluster.cluster import Cluster
from support.cluster.workload import load_sample
from support.controlplane.pipelines import wait_condition, wait_settled
from support.controlplane.server.api import Api, Manifest, eventually
from support.peers.certificates import DAY, Authority, tls_files

NAME, SECRET = "web", "web-tls"
HOST = f"{NAME}.speech.svc"
SERVICE = "omni_proto.stage.v1.StageService"
KUBELET_WRITES_S = 180
"""Timeout. The kubelet updates the mounted files of a changed Secret within about a minute."""


def secret_of(authority: Authority) -> Manifest:
    files = tls_files(authority.issue(hosts=[HOST], lasts=9 * DAY), authority.certificate)
    data = {name: base64.b64encode(content).decode() for name, content in files.items()}
    metadata = {"name": SECRET}
    return {"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", "metadata": metadata, "data": data}


@pytest.fixture
def web(speech: Api) -> Iterator[Manifest]:
    """Yields a pipeline of one stage whose TLS Secret does not exist yet. Deletes pipeline and Secret afterwards."""
    pipeline = load_sample("tiny-omni-tls", model="pvc://models/tiny-omni", rename=NAME, entry_alone=True)
    pipeline["spec"]["entry"]["tls"]["secretName"] = SECRET
    yield speech.apply(pipeline)
    speech.delete("OmniPipeline", NAME)
    speech.delete("Secret", SECRET)


@pytest.mark.timeout(1200)
def test_a_late_secret_then_grpcurl_then_a_renewal(
    cluster: Cluster, speech: Api, client: ClientPod, web: Manifest
) -> None:
    def list_services(authority: Authority) -> list[str]:
        (cluster.layout.run / "tools" / "ca.crt").write_bytes(authority.certificate)
        command = ("/tools/grpcurl", "-cacert", "/tools/ca.crt", "-connect-timeout", "10", f"{HOST}:50051", "list")
        return client.run(*command, timeout_s=60).split()

    def entry_pods() -> dict[str, int]:
        pods = speech.list("Pod", labels=f"omnipipeline.io/pipeline={NAME}")
        return {pod["metadata"]["uid"]: pod["status"]["containerStatuses"][0]["restartCount"] for pod in pods}

    rejected = wait_condition(speech, "Ready", NAME, status="False", reason="CertificateRejected", timeout_s=240)
    assert f"tls.crt of Secret {SECRET} does not exist" in rejected["message"]
    first, second = Authority("first"), Authority("second")
    speech.create(secret_of(first))
    settled = wait_settled(speech, NAME, timeout_s=420)
    assert settled["status"]["url"] == f"grpcs://{HOST}:50051"
    # A Ready pod appears in kube-proxy's rules a moment later.
    eventually(lambda: SERVICE in list_services(first), why="grpcurl that trusts the CA is answered")
    with pytest.raises(AssertionError):
        client.grpcurl("-connect-timeout", "10", f"{HOST}:50051", "list")
    before = entry_pods()
    speech.patch("Secret", SECRET, {"data": secret_of(second)["data"]})
    eventually(
        lambda: SERVICE in list_services(second), timeout_s=KUBELET_WRITES_S, why="the renewed certificate is served"
    )
    with pytest.raises(AssertionError, match="certificate"):
        list_services(first)
    assert entry_pods() == before
