"""A watch over a half-open connection: no byte, FIN or RST arrives, as behind a firewall that forgot the connection.

Client, reflector, store and connection are real. The server implements only the requests that these send.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web
from kubernetes.aio.client import Configuration

import omni_kube.api.client as client_module
from omni_kube.api.client import ApiClient
from omni_kube.api.timing import RateLimiter
from omni_kube.api.transport import ApiConnection, Transport
from omni_kube.api.wire import Root
from omni_kube.objects import ObjectKey
from omni_kube.reflector import WATCH_TIMEOUT_S, Reflector
from omni_kube.store import Store
from omni_operator.kinds import KIND_BY_NAME
from omni_operator.process.kopf import build_kopf_settings
from omni_operator.process.liveness import MAX_SILENCE_S
from omni_operator.process.metrics import Metrics
from support.machine.tcp_proxy import TcpProxy, Toxics
from support.processes.polling import until

WATCH_S, SLACK_S = 1.0, 0.5
SERVICE = KIND_BY_NAME["Service"]
ROOT = Root("OmniPipeline", "omnipipeline.io/pipeline")


def service(name: str, version: int) -> dict[str, Any]:
    owner = {"apiVersion": "omnipipeline.io/v1alpha1", "kind": "OmniPipeline", "name": "p", "uid": "u"}
    metadata = {"namespace": "ns", "name": name, "uid": name, "resourceVersion": str(version)}
    labels = {"omnipipeline.io/pipeline": "p"}
    metadata |= {"labels": labels, "ownerReferences": [owner | {"controller": True}]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"selector": {}}}


class Server:
    """Answers every list with no items, at version 10. Sends each watch the objects added after its start version."""

    def __init__(self) -> None:
        self.added: list[dict[str, Any]] = []
        self.changed = asyncio.Condition()
        self.watches: list[str] = []
        """Start version of each watch."""
        self.lists = 0

    async def add(self, name: str) -> None:
        async with self.changed:
            self.added.append(service(name, 11 + len(self.added)))
            self.changed.notify_all()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            self.lists += 1
            return web.json_response({"kind": "ServiceList", "metadata": {"resourceVersion": "10"}, "items": []})
        told = int(request.query["resourceVersion"])
        self.watches.append(str(told))
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            async with self.changed:
                new = [item for item in self.added if int(item["metadata"]["resourceVersion"]) > told]
                if not new:
                    await self.changed.wait()
                    continue
            for item in new:
                await response.write(json.dumps({"type": "ADDED", "object": item}).encode() + b"\n")
                told = int(item["metadata"]["resourceVersion"])


@pytest_asyncio.fixture
async def server() -> AsyncIterator[tuple[Server, int]]:
    server = Server()
    app = web.Application()
    app.router.add_get("/api/v1/namespaces/ns/services", server.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield server, runner.addresses[0][1]
    await runner.cleanup()


async def test_a_silent_watch_is_given_up_and_nothing_is_missed(
    server: tuple[Server, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "WATCH_SLACK_S", SLACK_S)
    api, port = server
    with TcpProxy(f"127.0.0.1:{port}") as proxy:
        configuration = Configuration()
        configuration.host = f"http://{proxy.target}"
        transport = Transport(ApiConnection(configuration, "test"), Metrics())
        client, store = ApiClient(transport, RateLimiter(1000.0, 100.0)), Store(ROOT)
        reflector = Reflector(
            client, store, SERVICE, "ns", selector="", on_change=lambda _: None, watch_timeout_s=WATCH_S
        )
        running = asyncio.create_task(reflector.run())
        try:
            await api.add("first")
            await until(lambda: store.has(ObjectKey("Service", "ns", "first")))
            proxy.toxics = Toxics(stop_after=0)
            await api.add("second")
            await until(lambda: proxy.dead_connections)
            # The silent connection stays open on both sides. Only new connections work again.
            proxy.heal(reset_dead=False)
            await until(lambda: store.has(ObjectKey("Service", "ns", "second")))
            assert not running.done()
            # The new watch has the start version of the silent one, so the server sends every event again.
            assert api.watches[:2] == ["10", "10"]
            assert api.lists == 1
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await transport.close()


def test_no_watch_is_silent_for_longer_than_liveness_bears() -> None:
    """With the production timeouts, a silent watch of ours or kopf's ends before the liveness probe would fail."""
    assert WATCH_TIMEOUT_S + client_module.WATCH_SLACK_S < MAX_SILENCE_S
    kopfs = build_kopf_settings().watching
    assert kopfs.server_timeout is not None
    assert kopfs.client_timeout is not None
    assert kopfs.server_timeout < kopfs.client_timeout < MAX_SILENCE_S
