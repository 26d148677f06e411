"""Executes a plan: applies in the plan's order, then prunes. Stops at the first failure.

Later writes of a plan depend on earlier ones (a Deployment on its ConfigMap, the switch of the entry Service on
everything), so nothing is written after a failure. The next reconcile starts from the state that it then observes.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from omni_kube.api.client import ApiClient
from omni_kube.errors import ApiError, ConflictError, InvalidError
from omni_kube.objects import Manifest, ObjectKey, controller_of, version_of
from omni_kube.store import Store
from omni_operator.kinds import KIND_BY_NAME, ChildKey, key_of
from omni_operator.rollout.plan import Plan, Verified

_log = logging.getLogger(__name__)


class ApplyMetrics(Protocol):
    """Counts writes that were not needed."""

    def count_noop_apply(self) -> None:
        """Count an apply that did not change the object."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of executing a plan."""

    applied: int = 0
    pruned: int = 0
    error: ApiError | None = None
    """The error that ended the plan early."""
    failed: str = ""
    """The object whose write failed, e.g. `Deployment tiny-thinker-1a2b3c4`."""
    taken: bool = False
    """Whether the plan failed on a child whose name is taken by an object that was not observed: the object lacks the
    pipeline's label, or has another owner."""

    @property
    def writes(self) -> int:
        """Writes that succeeded."""
        return self.applied + self.pruned


async def apply_plan(
    client: ApiClient,
    store: Store,
    scope: str,
    namespace: str,
    plan: Plan,
    seen: Mapping[ChildKey, Manifest],
    unknown: Mapping[ChildKey, ApiError],
    verified: Verified,
    metrics: ApplyMetrics,
) -> Outcome:
    """Apply and prune in the plan's order, and put the responses into the store. Raises NotLeaderError.

    A child in `seen` belongs to the pipeline, and the apply changes exactly that object (same uid). All other children
    are only created, so that another owner's object with the same name is never changed. unknown: children whose lookup
    by name failed, with the error.
    """
    applied = pruned = 0
    key: ChildKey | None = None
    try:
        for manifest, why in zip(plan.apply, plan.why, strict=True):
            key = key_of(manifest)
            if key in unknown:
                raise unknown[key]
            live = seen.get(key)
            if live is not None and controller_of(live) is None and await _take_over(client, manifest, live):
                live = None
            if live is not None:
                uid = str(live["metadata"]["uid"])
                await _apply_child(client, store, scope, manifest, uid, why, verified, metrics)
            else:
                try:
                    after = await client.apply_new(KIND_BY_NAME[key.kind], manifest)
                except ConflictError as error:
                    return Outcome(applied, pruned, error, _describe(key), taken=True)
                _take(store, scope, manifest, after, why, verified)
            applied += 1
        for child in plan.prune:
            key = child.key
            kind = KIND_BY_NAME[child.key.kind]
            rest = await client.delete(kind, namespace, child.key.name, uid=child.uid, version=child.resource_version)
            _log.info("deleted %s %s", child.key.kind, child.key.name)
            if rest is None or "deletionTimestamp" not in rest.get("metadata", {}):
                store.remove_deleted(ObjectKey(child.key.kind, namespace, child.key.name), scope)
            pruned += 1
    except ApiError as error:
        return Outcome(applied, pruned, error, _describe(key))
    return Outcome(applied, pruned)


async def _take_over(client: ApiClient, manifest: Manifest, live: Manifest) -> bool:
    """Prepare an orphan (Observed.owns) for its next apply. Returns whether it was deleted, to be made again.

    Its fields belong to the client that restored it, so applies would keep them. A ControllerRevision is made again:
    its data may not change, and the API server compares their bytes, which depend on the client that wrote them.
    """
    kind, uid = KIND_BY_NAME[manifest["kind"]], str(live["metadata"]["uid"])
    if kind.kind != "ControllerRevision":
        await client.claim_fields(kind, manifest, uid)
        return False
    metadata = manifest["metadata"]
    await client.delete(kind, metadata["namespace"], metadata["name"], uid=uid)
    return True


async def _apply_child(
    client: ApiClient,
    store: Store,
    scope: str,
    manifest: Manifest,
    uid: str,
    why: str,
    verified: Verified,
    metrics: ApplyMetrics,
) -> None:
    key = key_of(manifest)
    before = store.get(ObjectKey(key.kind, manifest["metadata"]["namespace"], key.name))
    try:
        after = await client.apply(KIND_BY_NAME[key.kind], manifest, uid)
    except InvalidError:
        if key.kind != "Service" or before is None:
            raise
        # Server-side apply identifies a port by its number. If somebody edited the number, an apply adds the desired
        # port, and two ports have the same name, which is invalid. So the list of ports is replaced first.
        await client.merge(KIND_BY_NAME[key.kind], manifest, {"spec": {"ports": manifest["spec"]["ports"]}}, uid)
        after = await client.apply(KIND_BY_NAME[key.kind], manifest, uid)
    if before is not None and version_of(before) == version_of(after):
        store.put_written(after, scope)
        metrics.count_noop_apply()
        level = logging.WARNING if verified.add_applied(manifest, after) else logging.DEBUG
        _log.log(level, "apply of %s changed nothing, though it differed by: %s", _describe(key), why)
    else:
        _take(store, scope, manifest, after, why, verified)


def _take(store: Store, scope: str, manifest: Manifest, after: Manifest, why: str, verified: Verified) -> None:
    store.put_written(after, scope)
    _log.info("applied %s: %s", _describe(key_of(manifest)), why)
    if verified.add_applied(manifest, after) and (paths := verified.altered(after)):
        _log.warning("admission changed %s: %s", _describe(key_of(manifest)), ", ".join(paths))


def _describe(key: ChildKey | None) -> str:
    return f"{key.kind} {key.name}" if key else ""
