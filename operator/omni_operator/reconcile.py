"""One reconcile of one pipeline: observe, decide, write. It is idempotent. Only the Kubernetes API holds lasting state.

`_pass` is a sequence of numbered steps. Its decisions are pure functions, nearly all in other modules.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from omni_kube.api.client import ApiClient
from omni_kube.api.timing import ServerClock
from omni_kube.errors import ApiError, ConflictError, NotFoundError
from omni_kube.objects import NamespacedName, ObjectKey, ObjectKind, is_terminating, version_of
from omni_kube.store import Store
from omni_operator.desired.build_settings import BuildSettings
from omni_operator.desired.route import route_kinds
from omni_operator.kinds import ENDPOINT_SLICES, PIPELINE_KIND, STAGES, ChildKey
from omni_operator.process.metrics import Metrics
from omni_operator.process.pipeline_log import log_subject
from omni_operator.process.settings import OperatorSettings
from omni_operator.reasons import Reason
from omni_operator.report import ALTERED_RECHECK_S, REPORTED_FAILURES, Report, describe_failure, result_of, schedule
from omni_operator.rollout.activation import Activator, plan_activation
from omni_operator.rollout.apply import Applier, Outcome
from omni_operator.rollout.decide import Decision, decide, read_live_spec
from omni_operator.rollout.plan import Verified, plan_targets
from omni_operator.scaling.notes import ScaleNotes
from omni_operator.state.model_names import ModelNames
from omni_operator.state.observe import (
    add_children,
    observe_live_pipeline,
    observe_pipeline,
    observe_unlabelled,
    observe_unread,
)
from omni_operator.state.observed import Observed
from omni_operator.state.slim import can_slim, slim_child
from omni_operator.status.assessment import Halt
from omni_operator.status.events import EventGate, compute_events
from omni_operator.status.publish import LackingFields, is_minor, live_status, write_events, write_status
from omni_operator.status.route import judge_route
from omni_operator.status.status import (
    compute_lost_status,
    compute_status,
    describe_deletion,
    refuse_excess,
    refuse_spec,
)
from omni_proto.pipeline import OmniPipeline

MAX_PASSES: Final = 5
"""Maximum passes of one reconcile. Each continues after the writes of the previous one, or with a newer pipeline."""
LIMIT_RECHECK_S: Final = 60.0
"""Pause before a pipeline beyond its namespace's limit is checked again: others may have been deleted by then."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Pass:
    """What one pass did."""

    done: Report | None = None
    """The result of the reconcile; None if another pass must follow."""
    wrote: bool = False


class Reconciler:
    """Performs the I/O around the decisions. A process has one Reconciler, shared by all its workers.

    `reconcile` may run for several pipelines concurrently, but never twice for the same pipeline.
    """

    def __init__(
        self,
        settings: OperatorSettings,
        client: ApiClient,
        clock: ServerClock,
        store: Store,
        metrics: Metrics,
        scope_of: Callable[[str], str],
        names: ModelNames,
    ) -> None:
        """scope_of returns the scope of the watch that covers a namespace."""
        self._settings = settings
        self._client = client
        self._clock = clock
        self._store = store
        self._metrics = metrics
        self._scope_of = scope_of
        self._names = names
        self._status_written: dict[NamespacedName, float] = {}
        # Pipelines for which the name of a child is taken by another object. Their missing children are requested by
        # name before they are created. A restarted operator fills this set again, because creating the child fails.
        self._taken: set[NamespacedName] = set()
        self._verified = Verified(clock=time.monotonic)
        self._applier = Applier(client, store, scope_of, self._verified, metrics)
        self._tried_again: dict[NamespacedName, float] = {}
        self._events = EventGate()
        self._lacking = LackingFields()
        self.scale_notes: Callable[[NamespacedName], ScaleNotes | None] = lambda key: None
        """Returns what scaling found out about a pipeline."""
        self.refusal: Callable[[ObjectKind, str], str] = lambda kind, namespace: ""
        """Returns why no object of an optional kind can be kept in a namespace; empty if one can."""
        self.activator: Callable[[], Activator] = Activator
        """Returns where callers of a pipeline without pods are led."""
        self.pod_monitors: Callable[[], bool] = lambda: False
        """Returns whether the cluster has PodMonitors and the settings enable them."""

    async def reconcile(self, key: NamespacedName, failures: int = 0) -> Report:
        """Bring one pipeline closer to its spec, and update its status. Raises ApiError, NotLeaderError.

        failures: number of consecutive failures before this call.
        """
        wrote = False
        for number in range(1, MAX_PASSES + 1):
            observed = observe_pipeline(self._store, key)
            if observed is None:
                # The garbage collector deletes its children.
                self._status_written.pop(key, None)
                self._taken.discard(key)
                self._tried_again.pop(key, None)
                return Report("gone")
            observed = replace(observed, can_scale=not self.refusal(STAGES, key.namespace))
            with log_subject(key.namespace, key.name, observed.generation):
                step = await self._pass(key, observed, failures, is_last=number == MAX_PASSES)
            if (report := step.done) is not None:
                failed = report.result in ("denied", "error")
                return Report("changed", report.retry, report.again_after_s) if wrote and not failed else report
            wrote |= step.wrote
        return Report("changed", again_after_s=self._settings.debounce_s)

    async def _pass(self, key: NamespacedName, observed: Observed, failures: int, is_last: bool) -> Pass:
        now = self._clock.now(time.monotonic())
        # 1. Observe: done by the caller, except for children that no watch reports.
        if (stop := self._find_stop(key, observed)) is not None:
            lost = compute_lost_status(observed, stop, now)
            return Pass(await self._publish_stopped(key, observed, lost, stop, now))
        # 2. Read the spec that is in force.
        spec = read_live_spec(observed, self._settings.default_image, self._settings.policy)
        halt = refuse_spec(spec.problem) if spec.problem else None
        if spec.pipeline is None:
            lost = compute_lost_status(observed, refuse_spec(spec.problem), now)
            return Pass(await self._publish(key, observed, lost, now, "refused"))
        # 3. Decide the rollout, build what is desired, plan the writes.
        settings = self._build_settings()
        self._try_altered_again(key, observed)
        decision = decide(spec.pipeline, observed, settings, now, self._verified, spec.revision)
        known, unknown = await self._observe_more(key, observed, decision)
        if known is not observed:
            observed = known
            decision = decide(spec.pipeline, observed, settings, now, self._verified, spec.revision)
        self._slim(observed)
        unwatched = self._find_unwatched(spec.pipeline, key.namespace)
        # 4. Apply, then prune. The route is apart: what refuses it holds up nothing else.
        route = replace(decision.route, apply=(), why=()) if unwatched else decision.route
        outcome = routed = Outcome()
        if not (decision.plan.is_empty and route.is_empty):
            if not await self._is_fresh(key, observed):
                return Pass()
            outcome = await self._applier.execute(decision.plan, observed, unknown)
            routed = await self._applier.execute(route, observed, unknown)
            if taken := outcome.taken or routed.taken:
                self._taken.add(key)
            wrote = taken or outcome.writes + routed.writes > 0
            if wrote and (outcome.error is None or outcome.taken) and not is_last:
                # The queue gets no event for the operator's own writes, and they may make further writes possible.
                return Pass(wrote=True)
        # 5. Write the scale targets, the status and Events.
        if outcome.error is None:
            written = await self._write_targets(decision, observed)
            outcome = written if written.error is not None else outcome
        for failed in (outcome, routed):
            if failed.error is not None:
                _log.info("failed on %s: %s", failed.failed, failed.error)
        errors = describe_failure(outcome, failures)
        refused = describe_failure(routed, REPORTED_FAILURES)
        status = compute_status(
            decision.pipeline,
            observed,
            decision.rollout,
            decision.plan,
            now,
            errors,
            ignored=spec.ignored,
            halt=halt,
            scale=self.scale_notes(key),
            route=judge_route(decision.pipeline, observed, route, unwatched, refused),
        )
        # The activator has no certificate of the pipeline, so a pipeline with TLS leads nowhere.
        is_away = ready_reason(status) in (Reason.SLEEPING, Reason.WAKING) and not decision.rollout.serving_tls
        await self._lead_callers(observed, is_away=is_away)
        result = result_of(decision.plan, outcome)
        report = await self._publish(
            key, observed, status, now, "refused" if halt and result == "unchanged" else result
        )
        return Pass(schedule(report, decision, outcome, now, route_waits=bool(unwatched or refused)))

    def _find_stop(self, key: NamespacedName, observed: Observed) -> Halt | None:
        """Returns why the operator does nothing for a pipeline, whatever its spec; None if it acts."""
        if is_terminating(observed.pipeline):
            return describe_deletion(observed)
        is_excess = self._store.rank(key, self._settings.max_pipelines) >= self._settings.max_pipelines
        return refuse_excess(self._settings.max_pipelines) if is_excess else None

    def _try_altered_again(self, key: NamespacedName, observed: Observed) -> None:
        """Let the plan compare again what admission changed: no event reports that a webhook or policy is gone."""
        altered = [child for child in observed.children.values() if self._verified.altered(child)]
        clock = asyncio.get_running_loop().time()
        if not altered or clock - self._tried_again.setdefault(key, clock) < ALTERED_RECHECK_S:
            return
        self._tried_again[key] = clock
        for child in altered:
            self._verified.forget(child["metadata"]["uid"])

    async def _observe_more(
        self, key: NamespacedName, observed: Observed, decision: Decision
    ) -> tuple[Observed, Mapping[ChildKey, ApiError]]:
        """Read from the API server the children that the plans are about and the store does not have. Returns observed
        itself if there are none. Also returns the children that cannot be read, with the error."""
        if decision.plan.unread:
            observed = await observe_unread(self._client, observed, decision.plan.unread)
        wanted = (*decision.plan.apply, *decision.route.apply)
        if not wanted or key not in self._taken:
            return observed, {}
        unlabelled = await observe_unlabelled(self._client, observed, wanted)
        if unlabelled.found:
            observed = add_children(observed, unlabelled.found)
        elif not unlabelled.unknown:
            self._taken.discard(key)
        return observed, unlabelled.unknown

    def _slim(self, observed: Observed) -> None:
        """Drop the unused fields of stored children that were found to match the desired state; see slim_child."""
        for key, child in observed.children.items():
            if can_slim(child) and self._verified.holds(child):
                name = ObjectKey(key.kind, observed.namespace, key.name)
                self._store.shorten(name, version_of(child), slim_child)

    def _find_unwatched(self, pipeline: OmniPipeline, namespace: str) -> str:
        """Returns why the operator cannot keep the route that the pipeline asks for; empty if it can."""
        refusals = (self.refusal(kind, namespace) for kind in route_kinds(pipeline.spec.entry.route))
        return next((refusal for refusal in refusals if refusal), "")

    def _build_settings(self) -> BuildSettings:
        return BuildSettings(
            default_image=self._settings.default_image,
            cluster_domain=self._settings.cluster_domain,
            image_pull_policy=self._settings.image_pull_policy,
            pod_monitors=self.pod_monitors(),
            pod_monitor_labels=self._settings.pod_monitor_labels,
            hub_endpoint=self._settings.hub_endpoint,
            otlp_endpoint=self._settings.otlp_endpoint,
        )

    async def _is_fresh(self, key: NamespacedName, observed: Observed) -> bool:
        """Returns whether the pipeline on the API server is still the one that the decision was made for.

        Without this check, a pipeline that was deleted while its watch was interrupted would get its children back.
        """
        live = await observe_live_pipeline(self._client, key)
        scope = self._scope_of(key.namespace)
        if live is None:
            self._store.remove_deleted(ObjectKey(PIPELINE_KIND, *key), scope)
            return False
        metadata = live["metadata"]
        if (
            metadata["uid"] == observed.uid
            and metadata["generation"] == observed.generation
            and "deletionTimestamp" not in metadata
        ):
            return True
        self._store.put_written(live, scope)
        return False

    async def _write_targets(self, decision: Decision, observed: Observed) -> Outcome:
        """Give new OmniStages their first number, and all their status."""
        for live, replicas, status in plan_targets(decision.pipeline, observed, decision.rollout):
            after, metadata = live, live["metadata"]
            try:
                if replicas is not None:
                    # Someone may scale it at this moment: then this write must fail.
                    change = {
                        "metadata": {"resourceVersion": metadata["resourceVersion"]},
                        "spec": {"replicas": replicas},
                    }
                    after = await self._client.merge(STAGES, live, change, metadata["uid"])
                if status is not None:
                    head = {"apiVersion": STAGES.api_version, "kind": STAGES.kind}
                    identity = {key: metadata[key] for key in ("name", "namespace", "uid")}
                    after = await self._client.apply_status(STAGES, {**head, "metadata": identity, "status": status})
            except ApiError as error:
                return Outcome(error=error, failed=f"{STAGES.kind} {metadata['name']}")
            self._store.put_written(after, self._scope_of(observed.namespace))
        return Outcome()

    async def _lead_callers(self, observed: Observed, *, is_away: bool) -> None:
        """Let the pipeline's Service lead to the gateway while the pipeline has no pods. A failure is only logged: its
        callers then find nobody, as without a gateway."""
        writes = plan_activation(observed, self.activator(), is_away=is_away)
        scope = self._scope_of(observed.namespace)
        try:
            for manifest, uid in writes.apply:
                client = self._client
                after = await (
                    client.apply(ENDPOINT_SLICES, manifest, uid) if uid else client.apply_new(ENDPOINT_SLICES, manifest)
                )
                self._store.put_written(after, scope)
            for live in writes.delete:
                name = live["metadata"]["name"]
                await self._client.delete(ENDPOINT_SLICES, observed.namespace, name, uid=live["metadata"]["uid"])
                self._store.remove_deleted(ObjectKey(ENDPOINT_SLICES.kind, observed.namespace, name), scope)
        except ApiError as error:
            _log.warning("callers of a pipeline without pods are not led to the gateway: %s", error)

    async def _publish_stopped(
        self, key: NamespacedName, observed: Observed, status: dict[str, Any], stop: Halt, now: datetime
    ) -> Report:
        """Write the status of a pipeline for which the operator does nothing."""
        if stop.reason is not Reason.TERMINATING:
            return replace(await self._publish(key, observed, status, now, "refused"), again_after_s=LIMIT_RECHECK_S)
        try:
            return replace(await self._publish(key, observed, status, now, "gone"), result="gone")
        except (NotFoundError, ConflictError):
            return Report("gone")  # it is gone, or an event reports its last change

    async def _publish(
        self, key: NamespacedName, observed: Observed, status: dict[str, Any], now: datetime, result: str
    ) -> Report:
        """Write the status if it differs, and Events. A minor change (see `is_minor`) may be written later."""
        time_of = asyncio.get_running_loop().time
        clock = time_of()
        status = self._lacking.strip({**status, "names": self._names.grant(key, now)}, clock)
        before = live_status(observed)
        if before == status:
            return Report(result)
        wait = self._status_written.get(key, float("-inf")) + self._settings.status_pause_s - clock
        if wait > 0 and is_minor(before, status):
            return Report(result, again_after_s=wait)
        pipeline = await write_status(self._client, observed, status, self._lacking, time_of)
        self._metrics.count_status_write()
        self._status_written[key] = clock
        self._store.put_written(pipeline, self._scope_of(key.namespace))
        self._names.update(key)
        # Nothing can be created in a namespace that is being deleted with the pipeline.
        changes = [] if is_terminating(observed.pipeline) else compute_events(before, status)
        admitted = [event for found in changes if (event := self._events.admit(observed.uid, found, clock)) is not None]
        await write_events(self._client, observed, admitted, self._settings.identity, now)
        return Report(result if result != "unchanged" else "changed")


def ready_reason(status: Mapping[str, Any]) -> str:
    """Returns the reason of the condition Ready in a status; empty without one."""
    return next((one["reason"] for one in status.get("conditions", ()) if one["type"] == "Ready"), "")
