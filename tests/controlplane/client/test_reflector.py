"""The reflector against a real API server: it follows changes, resumes watches and finds missed deletions."""

from __future__ import annotations

import asyncio

import pytest

from omni_kube.api.client import ApiClient
from omni_kube.api.timing import Backoff
from omni_kube.api.wire import Root
from omni_kube.objects import NamespacedName, ObjectKey
from omni_kube.reflector import Reflector
from omni_kube.store import Store
from omni_proto.pod_contract import PIPELINE_LABEL
from support.controlplane.server.api import Api
from support.controlplane.server.api_clients import CONFIG_MAP, config_map, grant, make_client
from support.controlplane.server.api_server import ApiServer
from support.controlplane.server.fault_proxy import FaultProxy
from support.processes.polling import PATIENCE_S, until

pytestmark = pytest.mark.controlplane


class Watched:
    """A reflector of ConfigMaps, and the pipelines whose changes it reported."""

    def __init__(self, client: ApiClient, space: Api, **options: object) -> None:
        self.store = Store(Root("OmniPipeline", PIPELINE_LABEL))
        self.told: list[NamespacedName] = []
        self.namespace = space.namespace
        self.reflector = Reflector(
            client,
            self.store,
            CONFIG_MAP,
            space.namespace,
            selector=PIPELINE_LABEL,
            on_change=self.told.extend,
            backoff=Backoff(0.05, 0.2),
            **options,  # type: ignore[arg-type]
        )
        self.task = asyncio.ensure_future(self.reflector.run())

    def names(self) -> set[str]:
        return {key.name for key in self.store.keys("ConfigMap")}

    def version(self, name: str) -> str:
        found = self.store.get(ObjectKey("ConfigMap", self.namespace, name))
        return found["metadata"]["resourceVersion"] if found else ""

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def test_reflector_follows(client: ApiClient, space: Api) -> None:
    space.apply(config_map(space, "before"))
    watched = Watched(client, space)
    await asyncio.wait_for(watched.reflector.synced.wait(), PATIENCE_S)
    assert watched.names() == {"before"}
    assert watched.told == [NamespacedName(space.namespace, "p")]
    space.apply(config_map(space, "after", "q"))
    await until(lambda: watched.names() == {"before", "after"})
    assert watched.told[-1] == NamespacedName(space.namespace, "q")
    changed = space.apply(config_map(space, "after", "q", a="c"))["metadata"]["resourceVersion"]
    await until(lambda: watched.version("after") == changed)
    space.delete("ConfigMap", "before")
    await until(lambda: watched.names() == {"after"})
    space.patch("ConfigMap", "after", {"metadata": {"labels": {PIPELINE_LABEL: None}}})
    await until(lambda: watched.names() == set())
    assert watched.reflector.age_s < PATIENCE_S
    assert watched.reflector.name == f"ConfigMap/{space.namespace}"
    await watched.stop()


async def test_reflector_resumes_where_a_watch_ended(client: ApiClient, space: Api) -> None:
    watched = Watched(client, space, watch_timeout_s=1.0)
    await asyncio.wait_for(watched.reflector.synced.wait(), PATIENCE_S)
    for number in range(3):
        space.apply(config_map(space, f"x{number}"))
        await asyncio.sleep(0.7)
    await until(lambda: watched.names() == {"x0", "x1", "x2"})
    assert watched.reflector.lists == 1
    await watched.stop()


async def test_reflector_finds_deletions_that_no_watch_told(
    faulty_client: ApiClient, faulty: FaultProxy, space: Api
) -> None:
    for name in ("kept", "lost"):
        space.apply(config_map(space, name, name))
    watched = Watched(faulty_client, space)
    await asyncio.wait_for(watched.reflector.synced.wait(), PATIENCE_S)
    faulty.go_away()
    space.delete("ConfigMap", "lost")
    await asyncio.sleep(0.3)
    watched.told.clear()
    faulty.come_back()
    await until(lambda: watched.names() == {"kept"})
    faulty.fail(1.0, ["500"])
    assert faulty.expire_watches() == 1
    space.delete("ConfigMap", "kept")
    space.apply(config_map(space, "new"))
    await until(lambda: any(call.fault == "500" for call in faulty.calls))
    faulty.fail(0.0)
    await until(lambda: watched.names() == {"new"})
    assert NamespacedName(space.namespace, "kept") in watched.told
    assert watched.reflector.lists == 2
    await watched.stop()


async def test_reflector_waits_for_its_rights(api_server: ApiServer, space: Api) -> None:
    client = await make_client(api_server.kubeconfig_for_service_account(space.namespace, "robot"))
    space.apply(config_map(space))
    watched = Watched(client, space)
    await asyncio.sleep(0.5)
    assert not watched.reflector.synced.is_set()
    grant(space)
    await asyncio.wait_for(watched.reflector.synced.wait(), PATIENCE_S)
    assert watched.names() == {"x"}
    await watched.stop()
    await client.transport.close()
