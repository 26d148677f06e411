"""Compares the desired children with the live ones and orders the necessary writes: none where nothing differs.

Also plans the writes of a pipeline's OmniStages: the first number of pods of each, and their status. The operator's
own scaling writes later numbers (scaling/scaler.py); with `by: External`, only other clients do. When a pipeline falls
asleep or wakes, the other OmniStages follow that of the entry.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from omni_kube.matching import find_differences
from omni_kube.objects import Manifest, controller_of, value_at
from omni_operator.kinds import CHILD_KINDS, KIND_BY_NAME, ChildKey, key_of
from omni_operator.names import (
    DESIRED_HASH_ANNOTATION,
    entry_service_name,
    headless_service_name,
    scale_target_name,
    stage_selector,
)
from omni_operator.rollout.replicas import can_sleep
from omni_operator.rollout.rollout import Rollout
from omni_operator.state.live import LiveSet
from omni_operator.state.observed import Observed
from omni_operator.state.slim import SLIM
from omni_proto.pipeline import KIND, OmniPipeline
from omni_proto.pipeline.types.scaling import STAGE_KIND


class TargetWrite(NamedTuple):
    """What an OmniStage lacks."""

    live: Manifest
    replicas: int | None
    """The number to set, if it holds none, or another one than a pipeline that sleeps or wakes."""
    status: Manifest | None
    """The status to write, if it differs."""


def plan_targets(pipeline: OmniPipeline, observed: Observed, rollout: Rollout) -> Iterator[TargetWrite]:
    """Yields the writes of the pipeline's OmniStages."""
    serving = rollout.sets.get(rollout.serving) or LiveSet(rollout.serving)
    may_sleep = can_sleep(pipeline)
    for stage in pipeline.spec.stages:
        live = observed.child(STAGE_KIND, scale_target_name(observed.name, stage.name))
        if stage.scaling is None or live is None or not observed.owns(live) or "deletionTimestamp" in live["metadata"]:
            continue
        pods = serving.stage(stage.name)
        selector = stage_selector(observed.name, stage.name, rollout.serving)
        status = {
            "replicas": int(value_at(pods.deployment, "status", "replicas", default=0)),
            "readyReplicas": pods.ready,
            "selector": ",".join(f"{key}={value}" for key, value in selector.items()),
        }
        asked, held = rollout.asked[stage.name], value_at(live, "spec", "replicas", default=None)
        follows = may_sleep and held != asked and 0 in (held, asked)
        first = asked if held is None or follows else None
        wrong = status if (live.get("status") or {}) != status else None
        if first is not None or wrong is not None:
            yield TargetWrite(live, first, wrong)


_APPLY_RANK: Final = {kind.kind: rank for rank, kind in enumerate(CHILD_KINDS)}
MISSING: Final = "missing"
DESIRED: Final = "desired"
_UNREAD: Final = "unread"
_PRUNE_LAST: Final = "ControllerRevision"
"""The kind that is pruned last: it holds the spec of the set that is being pruned, and if this reconcile is
interrupted, the next one needs that spec."""


class Prune(NamedTuple):
    """A child to delete, on condition that it is still exactly the observed object."""

    key: ChildKey
    uid: str
    resource_version: str


@dataclass(frozen=True, slots=True)
class ChildConflict:
    """An object that has the name of a child but does not belong to the pipeline; the operator never changes it."""

    key: ChildKey
    owner: str
    """Its controller, e.g. `Deployment web`; empty if it has none."""
    leftover: bool = False
    """Whether it belongs to a deleted pipeline of the same name: the garbage collector is about to remove it."""


class Altered(NamedTuple):
    """A child that is not what the operator applied, because admission (a webhook or policy) changed the write."""

    key: ChildKey
    uid: str
    paths: tuple[str, ...]
    """The fields, e.g. `spec.replicas`."""
    again: bool = False
    """Whether it was another client instead, such as an autoscaler, that sets the fields after each write."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The writes of one reconcile, in order: applies, then prunes."""

    apply: tuple[Manifest, ...] = ()
    """Children to apply, each after those that it depends on. The stable Services are last, so that they switch to a
    revision only when all its objects exist."""
    prune: tuple[Prune, ...] = ()
    """Children to delete."""
    conflicts: tuple[ChildConflict, ...] = ()
    """Names that are taken."""
    waiting: tuple[ChildKey, ...] = ()
    """Children that are being deleted, to be applied again when they no longer exist."""
    unread: tuple[ChildKey, ...] = ()
    """Children for which the store has only some fields. Their desired-hash annotation matches; the rest of the object
    must be read from the API server and compared."""
    altered: tuple[Altered, ...] = ()
    """Children that admission changed when they were last applied. They are not applied again for now."""
    why: tuple[str, ...] = ()
    """The difference for each apply: MISSING, DESIRED (the desired manifest has changed) or the paths of fields that
    were changed in the live object."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to write."""
        return not self.apply and not self.prune


MAX_RESTORES: Final = 5
"""Times that a field is restored at once. After that, another client fights for it, and pods would come and go."""
_RESTORE_WINDOW_S: Final = 300.0
"""Time without a restore after which they are counted from one again."""
_RESTORE_PAUSE_S: Final = (60.0, 300.0)
"""First and longest pause between two restores of a contested field; each is twice as long as the one before."""


class _Restores(NamedTuple):
    """How often the same fields of an object were restored, and when last."""

    times: int
    last_s: float

    @property
    def pause_s(self) -> float:
        first, longest = _RESTORE_PAUSE_S
        return 0.0 if self.times < MAX_RESTORES else min(first * 2.0 ** (self.times - MAX_RESTORES), longest)


class Verified:
    """Versions of live objects that were found to match the desired state.

    A cache, because comparing is most of a reconcile's work. An entry has the hash of the desired manifest, and the uid
    and resource version of the live object that matched it, so it never becomes invalid. An object has one entry; the
    oldest entries are evicted.
    """

    def __init__(self, limit: int = 100_000, clock: Callable[[], float] = lambda: 0.0) -> None:
        """clock: seconds, between which restores of a field are counted."""
        self._limit = limit
        self._clock = clock
        self._held: dict[str, tuple[str, str]] = {}
        self._altered: dict[str, tuple[str, ...]] = {}
        self._restores: dict[str, dict[str, _Restores]] = {}

    def __contains__(self, key: tuple[str, str, str]) -> bool:
        wanted, uid, version = key
        return self._held.get(uid) == (wanted, version)

    def add_applied(self, manifest: Manifest, live: Manifest) -> bool:
        """Add the object that an apply of manifest returned. Returns whether admission changed it in a new way.

        It counts as a match even then, until `forget`; otherwise it would be applied again and again.
        """
        metadata = live["metadata"]
        wanted = manifest["metadata"]["annotations"][DESIRED_HASH_ANNOTATION]
        self.add((wanted, metadata["uid"], metadata["resourceVersion"]))
        before, paths = self._altered.pop(metadata["uid"], ()), find_differences(manifest, live)
        if paths:
            self._altered[metadata["uid"]] = paths
        return paths != before

    def altered(self, live: Manifest) -> tuple[str, ...]:
        """Returns the fields of a live object that admission changed when it was last applied."""
        return self._altered.get(live["metadata"].get("uid", ""), ())

    def count_restore(self, uid: str, fields: str) -> bool:
        """Note that fields of an object were restored. Returns whether they are contested from now on."""
        now, found = self._clock(), self._restores.pop(uid, {})
        before = found.get(fields, _Restores(0, now))
        is_old = now - before.last_s > _RESTORE_WINDOW_S + before.pause_s
        found[fields] = after = _Restores(1 if is_old else before.times + 1, now)
        self._restores[uid] = found
        if len(self._restores) > self._limit:
            del self._restores[next(iter(self._restores))]
        return after.times == MAX_RESTORES

    def is_contested(self, uid: str, fields: str) -> bool:
        """Returns whether to leave the fields for now, because another client undid each restore."""
        found = self._restores.get(uid, {}).get(fields)
        return found is not None and self._clock() - found.last_s < found.pause_s

    def contested(self, uid: str) -> str:
        """Returns contested fields that were restored so lately that the other client may not have seen it yet."""
        since = self._clock() - _RESTORE_PAUSE_S[0]
        recent = (
            fields
            for fields, one in self._restores.get(uid, {}).items()
            if one.times > MAX_RESTORES and one.last_s > since
        )
        return next(recent, "")

    def forget(self, uid: str) -> None:
        """Compare the object with that uid again, and apply it if it still differs."""
        self._held.pop(uid, None)

    def add(self, key: tuple[str, str, str]) -> None:
        """Add a desired hash with the uid and resource version of the object that matches it."""
        wanted, uid, version = key
        self._held.pop(uid, None)
        self._held[uid] = (wanted, version)
        if len(self._held) > self._limit:
            oldest = next(iter(self._held))
            del self._held[oldest]
            self._altered.pop(oldest, None)

    def holds(self, live: Manifest) -> bool:
        """Returns whether a live object was found to match the manifest of its own desired-hash annotation."""
        metadata = live["metadata"]
        wanted = (metadata.get("annotations") or {}).get(DESIRED_HASH_ANNOTATION, "")
        return (wanted, metadata.get("uid", ""), metadata.get("resourceVersion", "")) in self


def compute_plan(
    desired: Sequence[Manifest],
    observed: Observed,
    keep: Collection[ChildKey] = (),
    verified: Verified | None = None,
    kinds: Collection[str] = KIND_BY_NAME,
) -> Plan:
    """Returns the plan of the writes that make the children equal to desired.

    A child is skipped if two things are true. Its desired-hash annotation equals the one in the desired manifest, so
    the manifest has not changed. And the desired manifest is a subset of the live object, so nobody has changed the
    object. keep: children that must not be pruned (Rollout.keep). Versions in verified are not compared again.
    kinds: the children that the plan is about.
    """
    apply: list[tuple[Manifest, str]] = []
    conflicts: list[ChildConflict] = []
    waiting: list[ChildKey] = []
    unread: list[ChildKey] = []
    altered: list[Altered] = []
    wanted = [manifest for manifest in desired if manifest["kind"] in kinds]
    for manifest in sorted(wanted, key=lambda item: _apply_order(item, observed.name)):
        live = observed.children.get(key_of(manifest))
        if live is None:
            apply.append((manifest, MISSING))
        elif not observed.owns(live):
            conflicts.append(_conflict(live, observed.name))
        elif "deletionTimestamp" in live["metadata"]:
            waiting.append(key_of(manifest))
        elif (difference := _difference(manifest, live, verified)) == _UNREAD:
            unread.append(key_of(manifest))
        elif difference is not None and not (verified and verified.is_contested(_uid(live), difference)):
            apply.append((manifest, difference))
        elif verified is not None and (fields := difference or verified.contested(_uid(live))):
            altered.append(Altered(key_of(manifest), _uid(live), tuple(fields.split(", ")), again=True))
        elif verified is not None and (paths := verified.altered(live)):
            altered.append(Altered(key_of(manifest), _uid(live), paths))
    return Plan(
        apply=tuple(manifest for manifest, _ in apply),
        prune=_prunes({key_of(manifest) for manifest in wanted} | set(keep), observed, kinds),
        conflicts=tuple(conflicts),
        waiting=tuple(waiting),
        unread=tuple(unread),
        altered=tuple(altered),
        why=tuple(difference for _, difference in apply),
    )


def _apply_order(manifest: Manifest, pipeline: str) -> tuple[int, int, str]:
    kind, name = key_of(manifest)
    is_stable = kind == "Service" and name in (entry_service_name(pipeline), headless_service_name(pipeline))
    return int(is_stable), _APPLY_RANK[kind], name


def _difference(manifest: Manifest, live: Manifest, verified: Verified | None) -> str | None:
    wanted = manifest["metadata"]["annotations"][DESIRED_HASH_ANNOTATION]
    if live["metadata"].get("annotations", {}).get(DESIRED_HASH_ANNOTATION) != wanted:
        return DESIRED
    key = (wanted, _uid(live), live["metadata"].get("resourceVersion", ""))
    if verified is not None and key in verified:
        return None
    if SLIM in live:
        return _UNREAD
    difference = ", ".join(find_differences(manifest, live))
    if verified is not None and not difference:
        verified.add(key)
    return difference or None


def _uid(live: Manifest) -> str:
    return str(live["metadata"].get("uid", ""))


def _conflict(live: Manifest, pipeline: str) -> ChildConflict:
    owner = controller_of(live)
    if owner is None:
        return ChildConflict(key_of(live), "")
    leftover = owner["kind"] == KIND and owner["name"] == pipeline
    return ChildConflict(key_of(live), f"{owner['kind']} {owner['name']}", leftover)


def _prunes(retained: set[ChildKey], observed: Observed, kinds: Collection[str]) -> tuple[Prune, ...]:
    found = [
        Prune(key, child["metadata"]["uid"], child["metadata"]["resourceVersion"])
        for key, child in observed.children.items()
        if key.kind in kinds
        and key not in retained
        and observed.owns(child)
        and "deletionTimestamp" not in child["metadata"]
    ]
    if any(item.key.kind == "ConfigMap" for item in found):
        # Only in this case, because the search walks every pod and ReplicaSet, and usually there is nothing to prune.
        used = set(_used_config_maps(observed))
        found = [item for item in found if not (item.key.kind == "ConfigMap" and item.key.name in used)]
    # Workloads are deleted before the objects that they depend on.
    return tuple(
        sorted(found, key=lambda item: (item.key.kind == _PRUNE_LAST, -_APPLY_RANK[item.key.kind], item.key.name))
    )


def _used_config_maps(observed: Observed) -> Iterator[str]:
    """Yields the names of ConfigMaps that a pod, or a ReplicaSet or Deployment with replicas, mounts or reads.

    The Deployment is the one that was observed before this reconcile's writes. A write may have changed it since, but
    its pods are not replaced yet.
    """
    for pod in observed.pods:
        yield from _config_maps_of(pod["spec"])
    for replica_set in observed.replica_sets:
        if value_at(replica_set, "spec", "replicas", default=0) > 0:
            yield from _config_maps_of(value_at(replica_set, "spec", "template", "spec", default={}))
    for key, child in observed.children.items():
        if key.kind == "Deployment" and value_at(child, "spec", "replicas", default=0) > 0:
            yield from _config_maps_of(value_at(child, "spec", "template", "spec", default={}))


def _config_maps_of(pod_spec: Manifest) -> Iterator[str]:
    for volume in pod_spec.get("volumes", ()):
        yield from _names(volume.get("configMap"))
        for source in (volume.get("projected") or {}).get("sources", ()):
            yield from _names(source.get("configMap"))
    for container in (*pod_spec.get("initContainers", ()), *pod_spec.get("containers", ())):
        for source in container.get("envFrom", ()):
            yield from _names(source.get("configMapRef"))
        for variable in container.get("env", ()):
            yield from _names((variable.get("valueFrom") or {}).get("configMapKeyRef"))


def _names(reference: dict[str, Any] | None) -> Iterator[str]:
    if reference and reference.get("name"):
        yield reference["name"]
