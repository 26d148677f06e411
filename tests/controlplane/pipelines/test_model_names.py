"""Two namespaces share a gateway: nobody takes over a name of the other's pipeline.

A real API server and the operator's process; no pod runs, and a gateway sends requests as soon as the status has a URL.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from omni_gateway.cluster.watch import ClusterPipelines
from omni_gateway.entries.pipelines import find_pipeline
from omni_gateway.errors import ModelNotFoundError
from omni_gateway.telemetry import GatewayMetrics
from support.controlplane.operators import MANIFESTS, OperatorProcess
from support.controlplane.pipelines import build_pipeline, build_stage
from support.controlplane.server.api import Api, eventually
from support.controlplane.server.api_server import ApiServer
from support.processes.polling import PATIENCE_S

pytestmark = pytest.mark.controlplane

_numbers = itertools.count()


@pytest.fixture
def spaces(api_server: ApiServer) -> tuple[Api, Api]:
    """Returns the namespaces of an owner and of somebody else."""
    number = next(_numbers)
    return (api_server.create_namespace(f"names-{number}-owner"), api_server.create_namespace(f"names-{number}-other"))


@pytest.fixture
def operator(api_server: ApiServer, spaces: tuple[Api, Api], tmp_path: Path) -> Iterator[OperatorProcess]:
    """Yields an operator of both namespaces that is not started."""
    namespaces = [space.namespace for space in spaces]
    lease = f"--lease-namespace={namespaces[0]}"
    running = OperatorProcess(api_server.kubeconfig, tmp_path, lease, namespaces=namespaces, fork=True)
    yield running
    running.kill()


def create(space: Api, name: str, *aliases: str) -> None:
    spec: dict[str, Any] = {"aliases": {"models": list(aliases)}} if aliases else {}
    space.create(build_pipeline(name, stages=[build_stage("thinker", outputs=["Text"])], **spec))


def tick() -> None:
    """Waits until what is created next is younger: creation times are whole seconds."""
    time.sleep(1.1)


def set_aliases(space: Api, name: str, *aliases: str) -> None:
    space.patch("OmniPipeline", name, {"spec": {"aliases": {"models": list(aliases)}}})


def record(space: Api, name: str) -> dict[str, str]:
    """Returns, by name, the message of a refused name; empty for a name that was granted."""
    names = (space.get("OmniPipeline", name).get("status") or {}).get("names", ())
    return {one["name"]: "" if one.get("since") else one["message"] for one in names}


def wait_record(space: Api, name: str, *granted: str, refused: tuple[str, ...] = ()) -> dict[str, str]:
    """Waits until the status says that these names were granted, and these refused. Returns the record."""
    wanted = dict.fromkeys(granted, True) | dict.fromkeys(refused, False)

    def recorded() -> dict[str, str]:
        found = record(space, name)
        assert {one: not message for one, message in found.items()} == wanted, found
        return found

    return eventually(recorded, why=f"{name} has {granted} and not {refused}")


async def resolve(api_server: ApiServer, spaces: tuple[Api, Api], *models: str) -> list[str]:
    """Returns the namespaces to which a gateway that starts now sends requests for these models; "" for none."""
    found = ClusterPipelines([space.namespace for space in spaces], api_server.kubeconfig)
    async with found.run(GatewayMetrics()):
        async with asyncio.timeout(PATIENCE_S):
            while not found.is_synced():  # noqa: ASYNC110 - a reflector of each namespace
                await asyncio.sleep(0.02)
        pipelines = found.list_pipelines()
        chosen = []
        for model in models:
            try:
                chosen.append(find_pipeline(pipelines, model)[1].namespace)
            except ModelNotFoundError:
                chosen.append("")
        return chosen


def test_nobody_takes_over_a_name(api_server: ApiServer, spaces: tuple[Api, Api], operator: OperatorProcess) -> None:
    owner, other = spaces
    mine, theirs = owner.namespace, other.namespace
    with operator:
        create(other, "old")  # older than everything below
        tick()
        create(owner, "chat", "tts-1")
        wait_record(owner, "chat", "chat", "tts-1")
        create(other, "chat")
        create(other, "tts-1")
        said = wait_record(other, "chat", refused=("chat",))
        assert f"{mine}/chat" in said["chat"]
        assert f"{theirs}/chat" in said["chat"]
        wait_record(other, "tts-1", refused=("tts-1",))
        set_aliases(other, "old", "chat", "tts-1", f"{mine}/chat", "free")
        wait_record(other, "old", "old", "free", refused=("chat", "tts-1", f"{mine}/chat"))
        models = ("chat", "tts-1", f"{mine}/chat", f"{theirs}/chat", f"{theirs}/tts-1", "old", "free")
        expected = [mine, mine, mine, theirs, theirs, theirs, theirs]
        assert asyncio.run(resolve(api_server, spaces, *models)) == expected

    # A new leader, and a gateway that restarts, give the same answer.
    with operator:
        operator.wait_reconciled(3)
        assert asyncio.run(resolve(api_server, spaces, *models)) == expected

        # Who is next in line gets a name at once when it is given up, and when its pipeline is deleted.
        set_aliases(owner, "chat")
        wait_record(other, "old", "old", "free", "tts-1", refused=("chat", f"{mine}/chat"))
        owner.delete("OmniPipeline", "chat")
        wait_record(other, "old", "old", "free", "tts-1", "chat", refused=(f"{mine}/chat",))
        create(owner, "chat")
        wait_record(owner, "chat", refused=("chat",))
        assert asyncio.run(resolve(api_server, spaces, "chat", "tts-1", f"{mine}/chat")) == [theirs, theirs, mine]


def test_pipelines_without_a_record(api_server: ApiServer, spaces: tuple[Api, Api], operator: OperatorProcess) -> None:
    """Without any record, the gateway lets the older pipeline have a name. A new operator then records the same."""
    owner, other = spaces
    create(owner, "chat", "tts-1")
    tick()
    create(other, "tts-1")
    for space, name in ((owner, "chat"), (other, "tts-1")):
        status = {"url": f"grpc://{name}.{space.namespace}.svc:50051", "conditions": [CONDITION]}
        space.patch("OmniPipeline", name, {"status": status}, subresource="status")
    assert asyncio.run(resolve(api_server, spaces, "tts-1")) == [owner.namespace]
    with operator:
        wait_record(other, "tts-1", refused=("tts-1",))
        wait_record(owner, "chat", "chat", "tts-1")
        assert asyncio.run(resolve(api_server, spaces, "tts-1")) == [owner.namespace]


CONDITION = {
    "type": "Ready",
    "status": "True",
    "reason": "AllStagesReady",
    "message": "",
    "lastTransitionTime": "2026-01-01T00:00:00Z",
}


def test_a_crd_that_is_older_than_the_operator(tmp_path: Path) -> None:
    """The operator works on, without a record of names, and says so once."""
    crd = yaml.safe_load((MANIFESTS / "crd" / "omnipipelines.yaml").read_text())
    del crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]["names"]
    old = tmp_path / "crd.yaml"
    old.write_text(yaml.safe_dump(crd))
    with ApiServer(tmp_path / "server", crds=[old]) as server:
        space = server.create_namespace("old")
        with OperatorProcess(server.kubeconfig, tmp_path, namespaces=["old"], fork=True) as operator:
            create(space, "chat")
            create(space, "other")
            for name in ("chat", "other"):
                eventually(
                    lambda name=name: (space.get("OmniPipeline", name).get("status") or {}).get("url"),  # type: ignore[misc]
                    why="the status is written",
                )
            assert "names" not in space.get("OmniPipeline", "chat")["status"]
            assert operator.log.read_text().count("no status.names") <= 2
