"""Executes a plan: applies in the plan's order, then prunes. Stops at the first failure.

Later writes of a plan depend on earlier ones (a Deployment on its ConfigMap, the switch of the entry Service on
everything), so nothing is written after a failure. The next reconcile starts from the state that it then observes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from omni_kube.api.client import ApiClient
from omni_kube.errors import ApiError, ConflictError, InvalidError
from omni_kube.objects import Manifest, ObjectKey, controller_of, version_of
from omni_kube.store import Store
from omni_operator.kinds import KIND_BY_NAME, ChildKey, key_of
from omni_operator.rollout.plan import DESIRED, MISSING, Plan, Prune, Verified
from omni_operator.state.observed import Observed

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


class Applier:
    """Executes plans. Puts the API server's answers into the store."""

    def __init__(
        self,
        client: ApiClient,
        store: Store,
        scope_of: Callable[[str], str],
        verified: Verified,
        metrics: ApplyMetrics,
    ) -> None:
        """scope_of returns the scope of the watch that covers a namespace."""
        self._client = client
        self._store = store
        self._scope_of = scope_of
        self._verified = verified
        self._metrics = metrics

    async def execute(self, plan: Plan, observed: Observed, unknown: Mapping[ChildKey, ApiError]) -> Outcome:
        """Apply and prune in the plan's order. Raises NotLeaderError.

        An observed child belongs to the pipeline, and the apply changes exactly that object (same uid). All other
        children are only created, so that another owner's object with the same name is never changed. unknown: children
        whose lookup by name failed, with the error.
        """
        applied = pruned = 0
        key: ChildKey | None = None
        try:
            for manifest, why in zip(plan.apply, plan.why, strict=True):
                key = key_of(manifest)
                if key in unknown:
                    raise unknown[key]
                live = observed.children.get(key)
                if live is not None and controller_of(live) is None and await self._take_over(manifest, live):
                    live = None
                if live is not None:
                    await self._apply(manifest, str(live["metadata"]["uid"]), why)
                else:
                    try:
                        after = await self._client.apply_new(KIND_BY_NAME[key.kind], manifest)
                    except ConflictError as error:
                        return Outcome(applied, pruned, error, _describe(key), taken=True)
                    self._store_applied(manifest, after, why)
                applied += 1
            for child in plan.prune:
                key = child.key
                await self._prune(child, observed.namespace)
                pruned += 1
        except ApiError as error:
            return Outcome(applied, pruned, error, _describe(key))
        return Outcome(applied, pruned)

    async def _take_over(self, manifest: Manifest, live: Manifest) -> bool:
        """Prepare an orphan (Observed.owns) for its next apply. Returns whether it was deleted, to be made again.

        Its fields belong to the client that restored it, so applies would keep them. A ControllerRevision is made
        again: its data may not change, and the API server compares their bytes, which depend on the client that wrote
        them.
        """
        kind, uid = KIND_BY_NAME[manifest["kind"]], str(live["metadata"]["uid"])
        if kind.kind != "ControllerRevision":
            await self._client.claim_fields(kind, manifest, uid)
            return False
        metadata = manifest["metadata"]
        await self._client.delete(kind, metadata["namespace"], metadata["name"], uid=uid)
        return True

    async def _apply(self, manifest: Manifest, uid: str, why: str) -> None:
        key, namespace = key_of(manifest), manifest["metadata"]["namespace"]
        kind = KIND_BY_NAME[key.kind]
        before = self._store.get(ObjectKey(key.kind, namespace, key.name))
        try:
            after = await self._client.apply(kind, manifest, uid)
        except InvalidError:
            if key.kind != "Service" or before is None:
                raise
            # Server-side apply identifies a port by its number. If somebody edited the number, an apply adds the
            # desired port, and two ports have the same name, which is invalid. So the list of ports is replaced first.
            await self._client.merge(kind, manifest, {"spec": {"ports": manifest["spec"]["ports"]}}, uid)
            after = await self._client.apply(kind, manifest, uid)
        if before is not None and version_of(before) == version_of(after):
            self._store.put_written(after, self._scope_of(namespace))
            self._metrics.count_noop_apply()
            level = logging.WARNING if self._verified.add_applied(manifest, after) else logging.DEBUG
            _log.log(level, "apply of %s changed nothing, though it differed by: %s", _describe(key), why)
        else:
            self._store_applied(manifest, after, why)

    def _store_applied(self, manifest: Manifest, after: Manifest, why: str) -> None:
        self._store.put_written(after, self._scope_of(manifest["metadata"]["namespace"]))
        _log.info("applied %s: %s", _describe(key_of(manifest)), why)
        is_new, paths = self._verified.add_applied(manifest, after), self._verified.altered(after)
        if is_new and paths:
            _log.warning("admission changed %s: %s", _describe(key_of(manifest)), ", ".join(paths))
        uid = str(after["metadata"]["uid"])
        if not paths and why not in (MISSING, DESIRED) and self._verified.count_restore(uid, why):
            _log.warning("another client changes %s again after each write: %s", _describe(key_of(manifest)), why)

    async def _prune(self, child: Prune, namespace: str) -> None:
        kind, name = child.key
        rest = await self._client.delete(
            KIND_BY_NAME[kind], namespace, name, uid=child.uid, version=child.resource_version
        )
        _log.info("deleted %s %s", kind, name)
        if rest is None or "deletionTimestamp" not in rest.get("metadata", {}):
            self._store.remove_deleted(ObjectKey(kind, namespace, name), self._scope_of(namespace))


def _describe(key: ChildKey | None) -> str:
    return f"{key.kind} {key.name}" if key else ""
