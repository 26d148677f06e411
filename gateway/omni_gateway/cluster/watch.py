"""Keeps the gateway's list of pipelines in step with the OmniPipelines of the API server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from omni_gateway.entries.pipelines import ServedPipeline, entry_tls
from omni_gateway.errors import ModelNotReadyError
from omni_gateway.settings import GatewaySettings
from omni_gateway.telemetry import GatewayMetrics
from omni_kube.api.client import ApiClient
from omni_kube.api.timing import RateLimiter
from omni_kube.api.transport import Transport, load_connection
from omni_kube.api.wire import Root
from omni_kube.errors import ApiError, ForbiddenError, InvalidError, NotFoundError
from omni_kube.objects import (
    Manifest,
    NamespacedName,
    ObjectKind,
    find_condition,
    is_terminating,
    parse_time,
    value_at,
)
from omni_kube.reflector import Reflector
from omni_kube.store import Store
from omni_proto.model_names import NameClaims, read_claims, resolve_names
from omni_proto.pod_contract import DOMAIN, PIPELINE_LABEL

log = logging.getLogger(__name__)

REFUSED: Final = ("Suspended", "ChildConflict")
"""If Ready is False for one of these reasons, the gateway sends no request: no pod runs, or the Service may belong to
somebody else. With any other reason the entry stage may serve, and an error names the stage that is missing."""
SLEEPING, WAKING = "Sleeping", "Waking"
"""Reasons of Ready of a pipeline without pods because nobody uses it, and of one whose pods start again."""
PIPELINES: Final = ObjectKind("OmniPipeline", f"{DOMAIN}/v1alpha1", "omnipipelines")
STAGES: Final = ObjectKind("OmniStage", f"{DOMAIN}/v1alpha1", "omnistages")
CALLER: Final = "omnipipeline-gateway"
CALLS_PER_S: Final = 5.0
"""Rate limit of the calls to the API server."""


def slim_manifest(manifest: Manifest) -> Manifest:
    """Returns the part of an OmniPipeline that is kept in memory: without managedFields, and of its stages only whether
    the entry may have no pods."""
    metadata = {
        name: value
        for name, value in manifest["metadata"].items()
        if name in ("name", "namespace", "generation", "creationTimestamp", "deletionTimestamp")
    }
    status = {
        name: value
        for name, value in value_at(manifest, "status", default={}).items()
        if name in ("url", "conditions", "names")
    }
    return {
        "metadata": metadata,
        "spec": {"aliases": value_at(manifest, "spec", "aliases", default={}), "sleeper": _find_sleeper(manifest)},
        "status": status,
    }


def _find_sleeper(manifest: Manifest) -> str:
    """Returns the name of the entry stage if its `minReplicas` is 0, else an empty text."""
    for stage in value_at(manifest, "spec", "stages", default=()):
        if not stage.get("inputs") and (stage.get("scaling") or {}).get("minReplicas") == 0:
            return str(stage["name"])
    return ""


def read_pipeline(
    manifest: Manifest, settings: GatewaySettings, names: Mapping[str, NameClaims]
) -> ServedPipeline | None:
    """Returns the pipeline as the gateway serves it; None if it has no address, or is being deleted.

    names: the pipeline that serves each name. Of its own name and aliases, a pipeline gets only those.
    """
    url = value_at(manifest, "status", "url", default="")
    if not url or is_terminating(manifest):
        return None
    ready = find_condition(manifest, "Ready") or {}
    sleeper = value_at(manifest, "spec", "sleeper", default="")
    metadata = manifest["metadata"]
    endpoint, host = balanced_endpoint(url, metadata["name"])
    here = NamespacedName(metadata["namespace"], metadata["name"])

    def has(name: str) -> bool:
        return name in names and (names[name].namespace, names[name].name) == here

    return ServedPipeline(
        name=metadata["name"],
        namespace=metadata["namespace"],
        endpoint=endpoint,
        has_name=has(here.name),
        aliases=tuple(filter(has, value_at(manifest, "spec", "aliases", "models", default=()))),
        voice_aliases=dict(value_at(manifest, "spec", "aliases", "voices", default={})),
        # One that wakes is offered too: its requests are held until it serves.
        ready=ready.get("status") == "True" or bool(sleeper and ready.get("reason") == WAKING),
        accepts=bool(ready) and ready.get("reason") not in REFUSED,
        scale_target=f"{here.name}-{sleeper}" if sleeper else "",
        asleep=bool(sleeper) and ready.get("reason") == SLEEPING,
        waking=bool(sleeper) and ready.get("reason") == WAKING,
        created=int(parse_time(metadata["creationTimestamp"]).timestamp()),
        tls=entry_tls(endpoint, settings, server_name=host),
    )


def balanced_endpoint(url: str, name: str) -> tuple[str, str]:
    """Returns the endpoint of the pipeline's headless Service, and the url's host, which the certificate must name.

    The Service in the url has a cluster IP, so a connection to it reaches only one pod. Over the addresses of the
    headless Service, the gateway balances the load itself.
    """
    scheme, _, address = url.partition("://")
    host = address.rpartition(":")[0]
    return f"{scheme}://{name}-headless{address.removeprefix(name)}", host


def read_pipelines(manifests: Sequence[Manifest], settings: GatewaySettings) -> tuple[ServedPipeline, ...]:
    """Returns the pipelines that have an address and are not being deleted, sorted by name and namespace."""
    names = resolve_names(claims for manifest in manifests if (claims := read_claims(manifest)) is not None)
    read = (read_pipeline(manifest, settings, names) for manifest in manifests)
    return tuple(sorted((one for one in read if one is not None), key=lambda one: (one.name, one.namespace)))


class ClusterPipelines:
    """The OmniPipelines of some namespaces, or of all. While the API server is unreachable, the last ones stay."""

    def __init__(
        self, namespaces: Sequence[str] = (), kubeconfig: Path | None = None, settings: GatewaySettings | None = None
    ):
        self._namespaces = tuple(namespaces) or ("",)
        self._kubeconfig = kubeconfig
        self._settings = settings or GatewaySettings()
        self._store = Store(Root(PIPELINES.kind, PIPELINE_LABEL), slim_manifest)
        self._reflectors: list[Reflector] = []
        self._served: tuple[ServedPipeline, ...] = ()
        self._client: ApiClient | None = None

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
        client = self._client = ApiClient(transport, RateLimiter(CALLS_PER_S, 2 * len(self._namespaces) + CALLS_PER_S))
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

    async def wake(self, pipeline: ServedPipeline) -> None:
        """Set the number of pods of the entry stage to 1 if it is 0, over the scale subresource of its OmniStage. The
        operator then starts all stages. Raises ModelNotReadyError if the API server refuses it."""
        if self._client is None:
            raise ModelNotReadyError(f"The model {pipeline.id!r} sleeps; try again.", retry_after_s=1)
        try:
            await self._client.scale_from_zero(STAGES, pipeline.namespace, pipeline.scale_target)
        except (ForbiddenError, NotFoundError, InvalidError) as error:
            log.error("a pipeline cannot be woken", extra={"pipeline": pipeline.qualified, "reason": str(error)})
            raise ModelNotReadyError(f"The model {pipeline.id!r} sleeps, and the gateway cannot wake it.") from error
        except ApiError as error:  # tried again
            log.warning("a pipeline is not woken yet", extra={"pipeline": pipeline.qualified, "reason": str(error)})

    def _changed(self, changed: Iterable[NamespacedName]) -> None:
        manifests = (self._store.get(key) for key in self._store.keys(PIPELINES.kind))
        self._served = read_pipelines([one for one in manifests if one is not None], self._settings)
