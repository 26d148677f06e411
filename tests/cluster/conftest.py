"""Fixtures of the end-to-end tests: a real node, the operator installed by its chart, a pipeline and a client pod.

These tests need root and take minutes: `make e2e` runs them, `make test` does not.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.cluster.client_pod import ClientPod, start_client
from support.cluster.cluster import Cluster
from support.cluster.node.images import ROOT
from support.cluster.workload import (
    RESTRICTED,
    SYSTEM,
    add_volume,
    install_operator,
    load_sample,
    make_namespace,
    share_models,
)
from support.controlplane.pipelines import wait_settled
from support.controlplane.server.api import Api, Manifest
from support.models.hub import TOKEN, Hub

LOGS = Path(os.environ.get("E2E_LOGS", ROOT / "e2e-logs"))
SPEECH = "speech"
_clusters: list[Cluster] = []


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Ignores this folder unless OMNIPIPE_E2E is set, as `make e2e` does."""
    return None if os.environ.get("OMNIPIPE_E2E") else True


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Saves the node's logs as soon as a test fails."""
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    if report.failed:
        for cluster in _clusters:
            cluster.collect_logs(LOGS / item.name)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Yields the node, with images built from the checkout. With E2E_IMAGES=keep it builds no images."""
    with Cluster() as cluster:
        _clusters.append(cluster)
        try:
            if os.environ.get("E2E_IMAGES") != "keep":
                cluster.images.build()
            yield cluster
        finally:
            # If this set-up failed, pytest reports it later, when the node is gone and has no logs to collect.
            _clusters.clear()


@pytest.fixture(scope="session")
def hub(cluster: Cluster, tiny_checkpoint: Path) -> Iterator[Hub]:
    """Yields a model hub that pods can reach.

    It has the tiny checkpoint twice: as org/open, which is public, and as org/gated, which needs a token.
    """
    files = {file.name: file.read_bytes() for file in sorted(tiny_checkpoint.iterdir())}
    # huggingface_hub writes a download in pieces of 10 MiB: only a larger file leaves a part to resume from.
    files["notes.txt"] = b"whales sing " * (2 << 20)
    with Hub(files, {"org/open": None, "org/gated": TOKEN}, cluster.host_address) as hub:
        yield hub


@pytest.fixture(scope="session")
def operator(cluster: Cluster, hub: Hub) -> str:
    """Installs a cluster-wide operator and a gateway in a restricted namespace. Returns that namespace."""
    make_namespace(cluster, SYSTEM)
    install_operator(cluster, SYSTEM, values={"hubEndpoint": hub.url, "gateway": {"enabled": True}})
    return SYSTEM


@pytest.fixture(scope="session")
def models(cluster: Cluster, tiny_checkpoint: Path) -> Path:
    """Returns the folder behind the claim `models`: it has the tiny checkpoint, and pipelines may write to it."""
    return share_models(cluster, tiny_checkpoint)


@pytest.fixture(scope="session")
def speech(cluster: Cluster, operator: str, models: Path) -> Api:
    """Returns the administrator's client in a restricted namespace that has the claim `models`."""
    api = make_namespace(cluster, SPEECH, RESTRICTED)
    add_volume(cluster, SPEECH, "models", models)
    return api


@pytest.fixture(scope="session")
def client(cluster: Cluster, speech: Api) -> ClientPod:
    """Returns a client pod in the pipelines' namespace."""
    return start_client(cluster, SPEECH)


@pytest.fixture(scope="session")
def tiny_omni(speech: Api) -> Manifest:
    """Returns the sample pipeline of three stages, Ready."""
    speech.apply(load_sample("tiny-omni", model="pvc://models/tiny-omni"))
    return wait_settled(speech, "tiny-omni", timeout_s=300)
