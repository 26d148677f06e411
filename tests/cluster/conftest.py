"""Fixtures of the end-to-end tests: a real node, the operator installed by its chart, a pipeline, a pod to call from.

They need root and minutes: `make e2e` runs them, `make test` does not.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.cluster.client_pod import ClientPod, start_client
from support.cluster.cluster import Cluster
from support.cluster.images import ROOT
from support.cluster.workload import (
    RESTRICTED,
    SYSTEM,
    add_volume,
    install_operator,
    load_sample,
    make_namespace,
    share_models,
)
from support.controlplane.api import Api, Manifest
from support.controlplane.pipelines import wait_settled
from support.hub import TOKEN, Hub

LOGS = Path(os.environ.get("E2E_LOGS", ROOT / "e2e-logs"))
SPEECH = "speech"
_clusters: list[Cluster] = []


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Nothing here is for `make test`."""
    return None if os.environ.get("OMNIPIPE_E2E") else True


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Whatever fails leaves the node's logs of that moment."""
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    if report.failed:
        for cluster in _clusters:
            cluster.collect_logs(LOGS / item.name)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """The node, with our images as the checkout has them (E2E_IMAGES=keep: as they are)."""
    with Cluster() as cluster:
        _clusters.append(cluster)
        try:
            if os.environ.get("E2E_IMAGES") != "keep":
                cluster.images.build()
            yield cluster
        finally:
            # The node is gone when a failed set-up is reported.
            _clusters.clear()


@pytest.fixture(scope="session")
def hub(cluster: Cluster, tiny_checkpoint: Path) -> Iterator[Hub]:
    """A model hub with the tiny checkpoint, which pods reach: org/open, and org/gated with a token."""
    files = {file.name: file.read_bytes() for file in sorted(tiny_checkpoint.iterdir())}
    # Its client keeps what came of a file in pieces of 10 MiB: only of a larger one is anything left to go on with.
    files["notes.txt"] = b"whales sing " * (2 << 20)
    with Hub(files, {"org/open": None, "org/gated": TOKEN}, cluster.host_address) as hub:
        yield hub


@pytest.fixture(scope="session")
def operator(cluster: Cluster, hub: Hub) -> str:
    """The operator of the whole cluster and a gateway, in a restricted namespace; its namespace."""
    make_namespace(cluster, SYSTEM)
    install_operator(cluster, SYSTEM, values={"hubEndpoint": hub.url, "gateway": {"enabled": True}})
    return SYSTEM


@pytest.fixture(scope="session")
def models(cluster: Cluster, tiny_checkpoint: Path) -> Path:
    """What the claim `models` holds: the tiny checkpoint, and whatever pipelines put there."""
    return share_models(cluster, tiny_checkpoint)


@pytest.fixture(scope="session")
def speech(cluster: Cluster, operator: str, models: Path) -> Api:
    """A restricted namespace with the claim `models`; the administrator's client in it."""
    api = make_namespace(cluster, SPEECH, RESTRICTED)
    add_volume(cluster, SPEECH, "models", models)
    return api


@pytest.fixture(scope="session")
def client(cluster: Cluster, speech: Api) -> ClientPod:
    """A pod beside the pipelines."""
    return start_client(cluster, SPEECH)


@pytest.fixture(scope="session")
def tiny_omni(speech: Api) -> Manifest:
    """The sample of three stages, Ready."""
    speech.apply(load_sample("tiny-omni", model="pvc://models/tiny-omni"))
    return wait_settled(speech, "tiny-omni", timeout_s=300)
