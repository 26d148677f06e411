"""A gateway's watch of OmniPipelines on a real API server, with the same rights that the chart grants."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import Any

import pytest

from omni_gateway.cluster.watch import ClusterPipelines
from omni_gateway.entries.pipelines import ServedPipeline, model_ids
from omni_gateway.errors import ModelNotReadyError
from omni_gateway.settings import GatewaySettings
from omni_gateway.telemetry import GatewayMetrics
from support.controlplane.operators import grant_gateway
from support.controlplane.server.api import Api, ApiError
from support.controlplane.server.api_server import ApiServer
from support.processes.polling import until

pytestmark = pytest.mark.controlplane

_numbers = itertools.count()
SPEC = {
    "model": {"uri": "file:///models/tiny"},
    "stages": [{"name": "any", "component": "acme/any", "outputs": ["Audio"]}],
}


@pytest.fixture
def spaces(api_server: ApiServer) -> tuple[Api, Api]:
    """Returns two namespaces. The gateway's ServiceAccount is in the first, with the rights of the chart in both."""
    number = next(_numbers)
    first, second = (api_server.create_namespace(f"gateway-{number}-{name}") for name in ("a", "b"))
    for space in (first, second):
        grant_gateway(space, first.namespace)
    return first, second


def write(space: Api, name: str, *, ready: str, url: str = "", reason: str = "") -> None:
    """Creates or updates a pipeline, with the status that an operator would write."""
    kind = {"apiVersion": "omnipipeline.io/v1alpha1", "kind": "OmniPipeline"}
    if space.find("OmniPipeline", name) is None:
        space.create({**kind, "metadata": {"name": name, "namespace": space.namespace}, "spec": SPEC})
    condition = {
        "type": "Ready",
        "status": ready,
        "reason": reason or ("AllStagesReady" if ready == "True" else "StagesNotReady"),
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    status: dict[str, Any] = {"conditions": [condition], **({"url": url} if url else {})}
    space.patch("OmniPipeline", name, {"status": status}, subresource="status")


async def test_pipelines_come_change_and_go(api_server: ApiServer, spaces: tuple[Api, Api]) -> None:
    """The gateway's models follow the OmniPipelines of two namespaces as these are created, changed and deleted."""
    first, second = spaces
    kubeconfig = api_server.kubeconfig_for_service_account(first.namespace, "gateway")
    write(first, "omni", ready="True", url="grpc://omni.a.svc:50051")
    write(first, "fresh", ready="False")  # no address yet
    found = ClusterPipelines([first.namespace, second.namespace], kubeconfig, GatewaySettings(entry_ca="/ca.crt"))
    metrics = GatewayMetrics()
    assert not found.is_synced()

    def served() -> dict[str, ServedPipeline]:
        return model_ids(found.list_pipelines())

    async with found.run(metrics):
        await until(found.is_synced)
        await until(lambda: list(served()) == ["omni"])
        one = served()["omni"]
        assert (one.endpoint, one.ready, one.namespace, one.tls) == (
            "grpc://omni-headless.a.svc:50051", True, first.namespace, None,
        )  # fmt: skip
        assert abs(one.created - time.time()) < 300

        write(second, "omni", ready="True", url="grpcs://omni.b.svc:50051")
        await until(lambda: sorted(served()) == sorted(["omni", f"{second.namespace}/omni"]))
        assert served()["omni"].namespace == first.namespace
        tls = served()[f"{second.namespace}/omni"].tls
        assert tls is not None
        assert (tls.ca, tls.server_name) == ("/ca.crt", "omni.b.svc")

        aliases = {"models": ["tts-1"], "voices": {"alloy": "Chelsie"}}
        assert not served()[f"{second.namespace}/omni"].aliases
        second.patch("OmniPipeline", "omni", {"spec": {"aliases": aliases}})
        await until(lambda: served()[f"{second.namespace}/omni"].aliases == ("tts-1",))
        assert served()[f"{second.namespace}/omni"].voice_aliases == aliases["voices"]

        write(second, "omni", ready="False")
        await until(lambda: not served()[f"{second.namespace}/omni"].ready)
        second.delete("OmniPipeline", "omni")
        await until(lambda: list(served()) == ["omni"])
    calls = {sample.labels["verb"] for family in metrics.api_calls.collect() for sample in family.samples}
    assert calls == {"list", "watch"}


async def test_a_pipeline_is_woken(api_server: ApiServer, spaces: tuple[Api, Api]) -> None:
    """The gateway turns 0 pods of the entry into 1, over `scale`. It changes no other number, and nothing else."""
    first, _ = spaces
    kubeconfig = api_server.kubeconfig_for_service_account(first.namespace, "gateway")
    stage = {**SPEC["stages"][0], "scaling": {"minReplicas": 0, "maxReplicas": 3}}
    pipeline = {"apiVersion": "omnipipeline.io/v1alpha1", "kind": "OmniPipeline", "metadata": {"name": "omni"}}
    first.apply({**pipeline, "spec": {**SPEC, "stages": [stage]}})
    target = {"apiVersion": "omnipipeline.io/v1alpha1", "kind": "OmniStage", "metadata": {"name": "omni-any"}}
    first.apply({**target, "spec": {"replicas": 0}})
    write(first, "omni", ready="True", reason="Sleeping", url="grpc://omni.a.svc:50051")
    found = ClusterPipelines([first.namespace], kubeconfig)
    async with found.run(GatewayMetrics()):
        await until(lambda: bool(found.list_pipelines()))
        (one,) = found.list_pipelines()
        assert (one.asleep, one.is_away, one.ready, one.accepts, one.scale_target) == (
            True,
            True,
            True,
            True,
            "omni-any",
        )
        await asyncio.gather(*(found.wake(one) for _ in range(3)))
        assert first.get("OmniStage", "omni-any")["spec"] == {"replicas": 1}
        first.patch("OmniStage", "omni-any", {"spec": {"replicas": 3}})
        await found.wake(one)
        assert first.get("OmniStage", "omni-any")["spec"] == {"replicas": 3}

        write(first, "omni", ready="False", reason="Waking", url="grpc://omni.a.svc:50051")
        await until(lambda: found.list_pipelines()[0].waking)
        assert found.list_pipelines()[0].ready, "still offered"
        write(first, "omni", ready="True", url="grpc://omni.a.svc:50051")
        await until(lambda: not found.list_pipelines()[0].is_away)
        first.delete("OmniStage", "omni-any")
        with pytest.raises(ModelNotReadyError, match="cannot wake"):
            await found.wake(one)


async def test_a_refused_namespace_holds_up_no_other(api_server: ApiServer, spaces: tuple[Api, Api]) -> None:
    """A gateway becomes ready although one of its namespaces was deleted, so that it may not list this namespace."""
    kubeconfig = api_server.kubeconfig_for_service_account(spaces[0].namespace, "gateway")
    write(spaces[0], "omni", ready="True", url="grpc://omni.a.svc:50051")
    found = ClusterPipelines([spaces[0].namespace, "deleted-long-ago"], kubeconfig)
    async with found.run(GatewayMetrics()):
        await until(lambda: found.is_synced() and bool(found.list_pipelines()))
    alone = ClusterPipelines(["deleted-long-ago"], kubeconfig)
    metrics = GatewayMetrics()
    async with alone.run(metrics):
        await until(lambda: any(sample.value for family in metrics.api_calls.collect() for sample in family.samples))
        assert not alone.is_synced()


def test_the_account_may_do_nothing_else(api_server: ApiServer, spaces: tuple[Api, Api]) -> None:
    first, _ = spaces
    robot = Api(api_server.kubeconfig_for_service_account(first.namespace, "gateway"), first.namespace)
    assert robot.list("OmniPipeline") == []
    for kind in ("Secret", "Pod", "Service", "OmniStage"):
        with pytest.raises(ApiError) as refused:
            robot.list(kind)
        assert refused.value.code == 403
