"""Keeps the gateway's list of pipelines in step with the API server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from omni_gateway.cluster.served import PIPELINES, keep_what_matters, read_pipelines
from omni_gateway.entries.pipelines import ServedPipeline
from omni_gateway.settings import GatewaySettings
from omni_gateway.telemetry.metrics import GatewayMetrics
from omni_kube.api.client import ApiClient
from omni_kube.api.connection import load_connection
from omni_kube.api.pacing import RateLimiter
from omni_kube.api.seen import Root
from omni_kube.api.transport import Transport
from omni_kube.objects import NamespacedName
from omni_kube.reflector import Reflector
from omni_kube.store import Store
from omni_proto.pod_contract import PIPELINE_LABEL

CALLER: Final = "omnipipeline-gateway"
CALLS_PER_S: Final = 5.0
"""Rate limit of the calls to the API server."""


class ClusterPipelines:
    """The OmniPipelines of some namespaces, or of all. While the API server is unreachable, the last ones stay."""

    def __init__(
        self, namespaces: Sequence[str] = (), kubeconfig: Path | None = None, settings: GatewaySettings | None = None
    ):
        self._namespaces = tuple(namespaces) or ("",)
        self._kubeconfig = kubeconfig
        self._settings = settings or GatewaySettings()
        self._store = Store(Root(PIPELINES.kind, PIPELINE_LABEL), keep_what_matters)
        self._reflectors: list[Reflector] = []
        self._served: tuple[ServedPipeline, ...] = ()

    def list_pipelines(self) -> Sequence[ServedPipeline]:
        """Returns the pipelines that have an address, ready or not."""
        return self._served

    def is_synced(self) -> bool:
        """Returns whether every namespace has been listed at least once.

        Namespaces that the API server refuses (403), for example because the namespace or the Role was deleted, are not
        waited for. But at least one namespace must have been listed.
        """
        waiting = [one for one in self._reflectors if not one.synced.is_set()]
        return len(waiting) < len(self._reflectors) and all(one.refused for one in waiting)

    @asynccontextmanager
    async def run(self, metrics: GatewayMetrics) -> AsyncGenerator[None, None]:
        """Watch the pipelines while the block is open. Raises CredentialsError."""
        transport = Transport(await load_connection(self._kubeconfig, CALLER), metrics)
        client = ApiClient(transport, RateLimiter(CALLS_PER_S, 2 * len(self._namespaces) + CALLS_PER_S))
        self._reflectors = [
            Reflector(client, self._store, PIPELINES, namespace, selector="", on_change=self._changed)
            for namespace in self._namespaces
        ]
        tasks = [asyncio.create_task(reflector.run()) for reflector in self._reflectors]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await transport.close()

    def _changed(self, changed: Iterable[NamespacedName]) -> None:
        manifests = (self._store.get(key) for key in self._store.keys(PIPELINES.kind))
        self._served = read_pipelines([one for one in manifests if one is not None], self._settings)
