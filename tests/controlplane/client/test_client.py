"""The API client against a real API server: writes, reads and rejected calls."""

from __future__ import annotations

import time
from contextlib import aclosing
from datetime import datetime

import pytest

import omni_kube.api.client as client_module
from omni_kube.api.client import ApiClient
from omni_kube.errors import ConflictError, NotLeaderError
from omni_kube.objects import Manifest, ObjectKind
from omni_operator.kinds import CHILD_KINDS, PIPELINES
from omni_proto.pod_contract import PIPELINE_LABEL
from support.controlplane.pipelines import build_pipeline
from support.controlplane.server.api import Api
from support.controlplane.server.api_clients import CONFIG_MAP, config_map, make_client
from support.controlplane.server.api_server import ApiServer

pytestmark = pytest.mark.controlplane
SECRET = ObjectKind("Secret", "v1", "secrets")


async def test_apply_get_delete(client: ApiClient, space: Api) -> None:
    made = await client.apply_new(CONFIG_MAP, config_map(space))
    again = await client.apply(CONFIG_MAP, config_map(space), made["metadata"]["uid"])
    assert again["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]
    fields = space.get("ConfigMap", "x")["metadata"]["managedFields"]
    assert [(entry["manager"], entry["operation"]) for entry in fields] == [("omnipipeline-operator", "Apply")]
    assert await client.get(CONFIG_MAP, space.namespace, "x") is not None
    uid = made["metadata"]["uid"]
    with pytest.raises(ConflictError):
        await client.delete(CONFIG_MAP, space.namespace, "x", uid="0b5d6a5e-0000-0000-0000-000000000000")
    with pytest.raises(ConflictError):
        await client.delete(CONFIG_MAP, space.namespace, "x", uid=uid, version="1")
    assert await client.delete(CONFIG_MAP, space.namespace, "x", uid=uid) is not None
    assert await client.delete(CONFIG_MAP, space.namespace, "x", uid=uid) is None
    assert await client.get(CONFIG_MAP, space.namespace, "x") is None


SMALLEST: dict[str, Manifest] = {
    "ServiceAccount": {"automountServiceAccountToken": False},
    "ConfigMap": {"data": {"a": "b"}},
    "ControllerRevision": {"revision": 1, "data": {"a": 1}},
    "Service": {"spec": {"selector": {"a": "b"}, "ports": [{"port": 80}]}},
    "NetworkPolicy": {"spec": {"podSelector": {}}},
    "Deployment": {
        "spec": {
            "selector": {"matchLabels": {"a": "b"}},
            "template": {
                "metadata": {"labels": {"a": "b"}},
                "spec": {"containers": [{"name": "main", "image": "example.com/a:1"}]},
            },
        }
    },
    "PodDisruptionBudget": {"spec": {"minAvailable": 1, "selector": {"matchLabels": {"a": "b"}}}},
    "OmniPipeline": build_pipeline(),
}


@pytest.mark.parametrize(
    "kind", [*(kind for kind in CHILD_KINDS if not kind.optional), PIPELINES], ids=lambda k: k.kind
)
async def test_what_must_be_new_touches_nothing_that_exists(client: ApiClient, space: Api, kind: ObjectKind) -> None:
    """If the object exists, apply_new raises ConflictError and leaves the object unchanged."""
    metadata = {"name": "x", "namespace": space.namespace}
    manifest = {**SMALLEST[kind.kind], "apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata}
    made = await client.apply_new(kind, manifest)
    assert made["metadata"]["managedFields"][0]["operation"] == "Apply"
    with pytest.raises(ConflictError):
        await client.apply_new(kind, {**manifest, "metadata": {**metadata, "labels": {"later": "yes"}}})
    assert await client.get(kind, space.namespace, "x") == made


async def test_lists_come_in_pages_of_one_state(client: ApiClient, space: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """All pages of a list have the same resource version. Objects without the label are left out."""
    monkeypatch.setattr(client_module, "METADATA_PAGE_SIZE", 2)
    for number in range(5):
        space.apply(config_map(space, f"x{number}"))
    space.apply(config_map(space, "foreign") | {"metadata": {"name": "foreign", "namespace": space.namespace}})
    pages = [page async for page in client.list_pages(CONFIG_MAP, space.namespace, PIPELINE_LABEL)]
    assert [len(page.items) for page in pages] == [2, 2, 1]
    assert len({page.version for page in pages}) == 1
    assert {item.key.name for page in pages for item in page.items} == {f"x{number}" for number in range(5)}
    read = pages[0].items[0].decode()
    assert (read["apiVersion"], read["kind"]) == ("v1", "ConfigMap"), (
        "filled in by the client: items of lists do not have them"
    )
    assert "data" not in read, "only metadata was requested"


async def test_watch_reports_changes_however_large(client: ApiClient, space: Api) -> None:
    """A watch also reports an object of 900 kB."""
    version = [page async for page in client.list_pages(CONFIG_MAP, space.namespace)][-1].version
    space.apply(config_map(space, "large", a="x" * 900_000))
    space.apply(config_map(space, "small"))
    space.delete("ConfigMap", "small")
    seen = []
    async with aclosing(client.watch(CONFIG_MAP, space.namespace, version, 60, PIPELINE_LABEL)) as batches:
        async for events in batches:
            for event in events:
                if event.type != "BOOKMARK":
                    assert event.seen is not None
                    seen.append((event.type, event.seen.key.kind, event.seen.key.name))
            if len(seen) == 3:
                break
    assert seen == [("ADDED", "ConfigMap", "large"), ("ADDED", "ConfigMap", "small"), ("DELETED", "ConfigMap", "small")]


async def test_which_apis_there_are(client: ApiClient) -> None:
    assert await client.serves(CONFIG_MAP)
    assert not await client.serves(ObjectKind("PodMonitor", "no-such-group.example.com/v1", "podmonitors"))
    assert not await client.serves(ObjectKind("Nonsense", "apps/v1", "nonsenses"))


async def test_the_gate_is_asked_before_every_write(api_server: ApiServer, space: Api) -> None:
    """If the gate (`may_write`) raises NotLeaderError, the client makes no write. It still reads."""

    def closed() -> float:
        raise NotLeaderError("not the leader")

    client = await make_client(api_server.kubeconfig, closed)
    with pytest.raises(NotLeaderError):
        await client.apply_new(CONFIG_MAP, config_map(space))
    with pytest.raises(NotLeaderError):
        await client.delete(CONFIG_MAP, space.namespace, "x", uid="u")
    assert await client.get(CONFIG_MAP, space.namespace, "x") is None
    await client.transport.close()


async def test_what_is_forced_is_forced_on_the_very_object_that_was_seen(client: ApiClient, space: Api) -> None:
    """`apply` and `merge` change only the object with the given uid, not a later one of the same name."""
    made = await client.apply_new(CONFIG_MAP, config_map(space))
    space.delete("ConfigMap", "x")
    with pytest.raises(ConflictError):
        await client.apply(CONFIG_MAP, config_map(space, a="ours"), made["metadata"]["uid"])
    assert space.find("ConfigMap", "x") is None, "a deleted object was created again"
    space.create(config_map(space, a="theirs"))
    for attempt in (
        client.apply(CONFIG_MAP, config_map(space, a="ours"), made["metadata"]["uid"]),
        client.merge(CONFIG_MAP, config_map(space), {"data": {"a": "ours"}}, made["metadata"]["uid"]),
    ):
        with pytest.raises(ConflictError):
            await attempt
    assert space.get("ConfigMap", "x")["data"] == {"a": "theirs"}


async def test_the_time_is_the_api_servers(client: ApiClient, space: Api) -> None:
    """The transport's clock shows the API server's time."""
    await client.get(CONFIG_MAP, space.namespace, "x")
    made = space.create(config_map(space))
    created = datetime.fromisoformat(made["metadata"]["creationTimestamp"])
    assert abs((client.transport.clock.now(time.monotonic()) - created).total_seconds()) < 60
