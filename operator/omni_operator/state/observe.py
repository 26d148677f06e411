"""Collects the input of one reconcile from the store, and from the API server for children that no watch reports.

The store contains the objects with the operator's labels. An object with a child's name may exist without these labels:
somebody removed them by hand, or the object belongs to another owner. Creating the child then fails, and from then on
the operator requests missing children by name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from omni_kube.api.client import ApiClient
from omni_kube.api.wire import Root
from omni_kube.errors import ApiError
from omni_kube.objects import Manifest, NamespacedName, ObjectKey
from omni_kube.store import Store
from omni_operator.kinds import (
    ENDPOINT_SLICES,
    FIELD_MANAGER,
    KIND_BY_NAME,
    PIPELINE_KIND,
    PIPELINES,
    PODS,
    REPLICA_SETS,
    SLICE_MANAGER_LABEL,
    SLICE_SERVICE_LABEL,
    ChildKey,
    key_of,
)
from omni_operator.state.observed import Observed
from omni_operator.state.slim import slim_seen
from omni_proto.pod_contract import PIPELINE_LABEL


def new_store() -> Store:
    """Returns an empty store for pipelines and their objects. It keeps only the fields that decisions need."""
    return Store(Root(PIPELINE_KIND, PIPELINE_LABEL), slim_seen)


def observe_pipeline(store: Store, key: NamespacedName) -> Observed | None:
    """Returns the stored pipeline with all objects that belong to it; None if the store has no such pipeline."""
    pipeline = store.get(ObjectKey(PIPELINE_KIND, *key))
    if pipeline is None:
        return None
    children: dict[ChildKey, Manifest] = {}
    pods: list[Manifest] = []
    replica_sets: list[Manifest] = []
    slices: list[Manifest] = []
    others = {PODS.kind: pods, REPLICA_SETS.kind: replica_sets, ENDPOINT_SLICES.kind: slices}
    for manifest in store.of_root(key):
        if manifest["kind"] in KIND_BY_NAME:
            children[key_of(manifest)] = manifest
        elif manifest["kind"] in others:
            others[manifest["kind"]].append(manifest)
    ours = [one for one in slices if (one["metadata"].get("labels") or {}).get(SLICE_MANAGER_LABEL) == FIELD_MANAGER]
    return Observed(
        pipeline=pipeline,
        children=children,
        pods=pods,
        replica_sets=replica_sets,
        endpoints=count_ready_endpoints(one for one in slices if one not in ours),
        activations=ours,
    )


def add_children(observed: Observed, found: Iterable[Manifest]) -> Observed:
    """Returns observed with additional children."""
    return replace(observed, children={**observed.children, **{key_of(manifest): manifest for manifest in found}})


def count_ready_endpoints(slices: Iterable[Manifest]) -> dict[str, int]:
    """Returns the number of ready endpoints by Service.

    An endpoint in several slices (both IP families, rebalancing) counts once.
    """
    ready: dict[str, set[str]] = {}
    for endpoint_slice in slices:
        service = (endpoint_slice["metadata"].get("labels") or {}).get(SLICE_SERVICE_LABEL)
        if service is None:
            continue
        addresses = ready.setdefault(service, set())
        for endpoint in endpoint_slice.get("endpoints") or ():
            # Absent means unknown, which consumers should treat as ready (Kubernetes API).
            if (endpoint.get("conditions") or {}).get("ready") is not False:
                target = endpoint.get("targetRef") or {}
                addresses.update([target["uid"]] if "uid" in target else endpoint.get("addresses") or ())
    return {service: len(addresses) for service, addresses in ready.items()}


@dataclass(frozen=True, slots=True)
class Unlabelled:
    """The result of requesting, by name, the children that the store lacks."""

    found: tuple[Manifest, ...] = ()
    """Live objects with these names, of any owner."""
    unknown: Mapping[ChildKey, ApiError] = field(default_factory=dict)
    """Children whose request failed, with the error: they must not be applied."""


async def observe_unlabelled(client: ApiClient, observed: Observed, wanted: Sequence[Manifest]) -> Unlabelled:
    """Request by name the wanted children that observed lacks. Returns the objects that exist, and failed requests."""
    missing = [key_of(manifest) for manifest in wanted if key_of(manifest) not in observed.children]
    answers = await asyncio.gather(
        *(client.get(KIND_BY_NAME[key.kind], observed.namespace, key.name) for key in missing), return_exceptions=True
    )
    unknown: dict[ChildKey, ApiError] = {}
    for key, answer in zip(missing, answers, strict=True):
        if isinstance(answer, ApiError):
            unknown[key] = answer
        elif isinstance(answer, BaseException):
            raise answer
    return Unlabelled(tuple(answer for answer in answers if isinstance(answer, dict)), unknown)


async def observe_unread(client: ApiClient, observed: Observed, unread: Sequence[ChildKey]) -> Observed:
    """Read the unread children. Returns observed with these children, except those that no longer exist. Raises
    ApiError."""
    answers = await asyncio.gather(
        *(client.get(KIND_BY_NAME[key.kind], observed.namespace, key.name) for key in unread)
    )
    gone = {key for key, answer in zip(unread, answers, strict=True) if answer is None}
    children = {key: child for key, child in observed.children.items() if key not in gone}
    return add_children(replace(observed, children=children), [answer for answer in answers if answer is not None])


async def observe_live_pipeline(client: ApiClient, key: NamespacedName) -> Manifest | None:
    """Returns the pipeline as it is now on the API server, without a cache. Raises ApiError."""
    return await client.get(PIPELINES, key.namespace, key.name)
