"""Watches of several namespaces, one of which the API server refuses: it was deleted, or the operator's Role in it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web
from kubernetes.aio.client import Configuration

from omni_kube.api.client import ApiClient
from omni_kube.api.timing import RateLimiter
from omni_kube.api.transport import ApiConnection, Transport
from omni_kube.objects import ObjectKind
from omni_operator.kinds import INGRESSES, PIPELINE_KIND, PIPELINES, POD_MONITORS, STAGES, WATCHED_KINDS
from omni_operator.process.kopf import EndlessBackoffs, PipelineWatch
from omni_operator.process.metrics import Metrics
from omni_operator.process.watches import Watches
from omni_operator.state.observe import new_store
from support.processes.polling import PATIENCE_S, until

Started = tuple["Server", Watches, PipelineWatch]
Refuses = Callable[[str, str], bool]
"""Returns whether the server refuses a request about a namespace and a plural."""


class Server:
    """Serves collections that are empty except for `items` (pipelines). Refuses some. Watches stay open and silent."""

    def __init__(self) -> None:
        self.refuses: Refuses = lambda namespace, plural: False
        self.errors: dict[str, int] = {}
        """The error codes of plurals that the server cannot list."""
        self.items: list[dict[str, Any]] = []

    async def list(self, request: web.Request) -> web.StreamResponse:
        if self.refuses(request.match_info["namespace"], request.match_info["plural"]):
            return web.json_response({"kind": "Status", "code": 403, "reason": "Forbidden"}, status=403)
        if code := self.errors.get(request.match_info["plural"]):
            return web.json_response({"kind": "Status", "code": code}, status=code)
        if "watch" in request.query:
            response = web.StreamResponse()
            await response.prepare(request)
            await asyncio.Event().wait()
        items = [item for item in self.items if request.match_info["plural"] == PIPELINES.plural]
        items = [item for item in items if item["metadata"]["namespace"] == request.match_info["namespace"]]
        return web.json_response({"metadata": {"resourceVersion": "10"}, "items": items})

    async def discover(self, request: web.Request) -> web.Response:
        return web.json_response({"resources": [{"name": kind.plural} for kind in (PIPELINES, *WATCHED_KINDS)]})


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Started]:
    """Yields the server, and watches of the namespaces `kept` and `gone`, which are not started."""
    server, tasks = Server(), set[asyncio.Task[None]]()
    app = web.Application()
    for root in ("/api/{version}", "/apis/{group}/{version}"):
        app.router.add_get(f"{root}/namespaces/{{namespace}}/{{plural}}", server.list)
        app.router.add_get(root, server.discover)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    configuration = Configuration()
    configuration.host = f"http://127.0.0.1:{runner.addresses[0][1]}"
    connection = ApiConnection(configuration, "test")
    transport = Transport(connection, Metrics())

    def spawn(work: Coroutine[Any, Any, None]) -> None:
        tasks.add(asyncio.create_task(work))

    client = ApiClient(transport, RateLimiter(1000.0, 100.0))
    pipelines = PipelineWatch(connection, ["kept", "gone"], lambda event_type, manifest: None)
    yield server, Watches(client, new_store(), pipelines, lambda keys: None, spawn), pipelines
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await transport.close()
    await runner.cleanup()


async def test_a_refused_namespace_holds_up_no_other(server: Started) -> None:
    api, watches, pipelines = server
    api.refuses = lambda namespace, plural: namespace == "gone"
    await watches.start()
    async with asyncio.timeout(PATIENCE_S):
        await watches.synced()
    await until(lambda: not watches.unsynced())
    assert watches.is_current("kept")
    assert not watches.is_current("gone")

    pipelines.on_response(f"/apis/{PIPELINES.api_version}/namespaces/gone/{PIPELINES.plural}?limit=500", 403)
    assert {name.rpartition("/")[2] for name in watches.ages(refused=False)} == {"kept"}
    assert len(watches.ages()) == 2 * len(watches.ages(refused=False))

    api.refuses = lambda namespace, plural: False
    await until(lambda: watches.is_current("gone"))
    pipelines.on_response(f"/apis/{PIPELINES.api_version}/namespaces/gone/{PIPELINES.plural}?limit=500", 200)
    assert watches.ages(refused=False).keys() == watches.ages().keys()


async def test_a_namespace_with_one_refused_kind_is_not_decided_about(server: Started) -> None:
    """Without the pods, a decision could end stages that still have requests."""
    api, watches, _ = server
    api.refuses = lambda namespace, plural: (namespace, plural) == ("gone", "pods")
    await watches.start()
    await until(lambda: not watches.unsynced())
    assert watches.is_current("kept")
    assert not watches.is_current("gone")


async def test_an_optional_kind_may_be_refused(server: Started) -> None:
    api, watches, _ = server
    api.refuses = lambda namespace, plural: (namespace, plural) == ("gone", "ingresses")
    await watches.start()
    assert "the cluster has no ingresses of networking.k8s.io/v1" in watches.describe_refusal(INGRESSES, "kept")
    for _ in range(2):  # the second time they are watched already
        await watches.discover_optional()
    assert all(watches.has(kind) for kind in WATCHED_KINDS if kind.optional)
    assert len(watches.ages()) == 2 * (len(WATCHED_KINDS) + 1)
    await until(lambda: watches.is_current("kept") and watches.is_current("gone"))
    assert watches.describe_refusal(INGRESSES, "kept") == ""
    assert "may not list and watch ingresses" in watches.describe_refusal(INGRESSES, "gone")


async def test_an_optional_kind_may_be_uninstalled(server: Started) -> None:
    """Between its discovery and its first list, or later: the process lives on, and decides about every namespace."""
    api, watches, _ = server
    await watches.start()
    await watches.discover_optional()
    api.errors = {POD_MONITORS.plural: 404, INGRESSES.plural: 404}
    await until(lambda: not watches.has(POD_MONITORS) and not watches.has(INGRESSES) and watches.has(STAGES))
    await until(lambda: watches.is_current("kept") and watches.is_current("gone") and not watches.unsynced())
    assert "the cluster has no ingresses of networking.k8s.io/v1" in watches.describe_refusal(INGRESSES, "kept")
    assert not any(name.startswith((POD_MONITORS.kind, "Ingress")) for name in watches.ages(refused=False))
    api.errors = {}
    await until(lambda: watches.has(POD_MONITORS) and watches.describe_refusal(INGRESSES, "kept") == "")


@pytest.mark.parametrize("code", [500, 502, 503, 504])
async def test_an_optional_kind_that_nothing_serves_holds_up_nothing(server: Started, code: int) -> None:
    """An APIService whose server is gone stays in the discovery, and each list fails."""
    api, watches, _ = server
    api.errors = dict.fromkeys([POD_MONITORS.plural, INGRESSES.plural], code)
    await watches.start()
    await watches.discover_optional()
    await until(lambda: watches.is_current("kept") and watches.is_current("gone") and not watches.unsynced())
    assert not watches.has(POD_MONITORS)
    assert "cannot list ingresses.networking.k8s.io" in watches.describe_refusal(INGRESSES, "kept")
    api.errors = {}
    await until(lambda: watches.has(POD_MONITORS) and watches.describe_refusal(INGRESSES, "kept") == "")


@pytest.mark.parametrize("kind", [kind for kind in WATCHED_KINDS if kind == STAGES or not kind.optional])
async def test_decisions_wait_for_the_kinds_that_they_rest_upon(server: Started, kind: ObjectKind) -> None:
    api, watches, _ = server
    api.errors = {kind.plural: 503}
    await watches.start()
    await watches.discover_optional()
    await until(lambda: {name.partition("/")[0] for name in watches.unsynced()} == {kind.kind})
    assert not watches.is_current("kept")
    api.errors = {}
    await until(lambda: watches.is_current("kept") and watches.is_current("gone"))


async def test_nothing_is_ready_if_all_is_refused(server: Started) -> None:
    api, watches, _ = server
    asked: set[tuple[str, str]] = set()

    def refuse(namespace: str, plural: str) -> bool:
        asked.add((namespace, plural))
        return True

    api.refuses = refuse
    await watches.start()
    await until(lambda: len(asked) == len(watches.unsynced()))
    assert len(asked) == 2 * sum(not kind.optional for kind in WATCHED_KINDS)
    assert not watches.is_current("kept")


REFUSED = f"/apis/{PIPELINES.api_version}/namespaces/gone/{PIPELINES.plural}?limit=500"


async def test_pipelines_of_a_namespace_that_can_no_longer_be_watched_are_forgotten(server: Started) -> None:
    """Nothing reports the deletion of a namespace while the watch is cut; its pipelines must leave the metrics."""
    api, watches, pipelines = server
    for namespace in ("gone", "kept"):
        watches.take_pipeline("ADDED", pipeline_in(namespace))
    stored = watches._store
    api.refuses = lambda namespace, plural: namespace == "gone"
    api.items = [pipeline_in("kept")]
    await watches.sweep()
    assert len(stored.keys(PIPELINE_KIND)) == 2, "a single refusal may pass"
    pipelines.on_response(REFUSED, 403)
    await watches.sweep()
    assert [key.namespace for key in stored.keys(PIPELINE_KIND)] == ["kept"]
    assert watches.take_pipeline(None, pipeline_in("gone")), "kopf's next list brings it back"
    assert len(stored.keys(PIPELINE_KIND)) == 2


async def test_a_refused_namespace_is_one_warning_with_its_remedy(
    server: Started, caplog: pytest.LogCaptureFixture
) -> None:
    _, _, pipelines = server
    caplog.set_level("INFO", logger="omni_operator")
    for status in (403, 403, 403, 200, 200, 403):
        pipelines.on_response(REFUSED, status)
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO", "WARNING"]
    assert caplog.messages[0] == (
        "the API server does not let the operator watch the pipelines of namespace gone (403): if the namespace was "
        "deleted, remove it from watchNamespaces (--namespace); otherwise restore the operator's Role and RoleBinding "
        "in it (helm upgrade); the operator keeps trying, with growing pauses"
    )


async def test_kopfs_pauses_grow_while_it_is_refused(server: Started) -> None:
    _, _, pipelines = server
    pauses = iter(EndlessBackoffs())
    pipelines.on_response(REFUSED, 403)
    assert [next(pauses) for _ in range(8)] == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    pipelines.on_response(REFUSED, 500)
    assert next(pauses) == 5.0


async def test_a_watch_that_ends_too_early_was_interrupted(server: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    """The API server ends the watches when the CRD changes; a watch that ends in time is only renewed."""
    _, _, pipelines = server
    loop = asyncio.get_running_loop()
    path = f"/apis/{PIPELINES.api_version}/namespaces/kept/{PIPELINES.plural}?watch=true&resourceVersion=7"
    began = loop.time()
    for after, status, interrupted in ((0, 200, False), (60, 200, False), (61, 403, False), (70, 200, True)):
        with monkeypatch.context() as patch:
            patch.setattr(loop, "time", lambda after=after: began + after)
            pipelines.on_response(path, status)
        assert await pipelines.wait_interrupted(0.0) is interrupted, after
    assert not await pipelines.wait_interrupted(0.0), "it is told once"


def pipeline_in(namespace: str) -> dict[str, Any]:
    return {
        "apiVersion": PIPELINES.api_version,
        "kind": PIPELINE_KIND,
        "metadata": {
            "name": "omni",
            "namespace": namespace,
            "uid": namespace,
            "resourceVersion": "9",
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {},
    }
