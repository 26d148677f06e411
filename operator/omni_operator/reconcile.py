"""One reconcile of one pipeline: observe, decide, write. It is idempotent. Only the Kubernetes API holds lasting state.

`_pass` is a sequence of numbered steps. Its decisions are pure functions, nearly all in other modules.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from omni_kube.api.client import ApiClient
from omni_kube.api.clock import ServerClock
from omni_kube.errors import DeniedError, RetryClass
from omni_kube.objects import NamespacedName, ObjectKey, version_of
from omni_kube.store import Store
from omni_operator.desired.build_settings import BuildSettings
from omni_operator.kinds import PIPELINE_KIND
from omni_operator.process.metrics import Metrics
from omni_operator.process.pipeline_log import log_subject
from omni_operator.process.settings import OperatorSettings
from omni_operator.rollout.apply import Outcome, apply_plan
from omni_operator.rollout.decide import Decision, decide, parse_live_pipeline
from omni_operator.rollout.plan import Plan, Verified
from omni_operator.state.model_names import ModelNames
from omni_operator.state.observe import (
    Unlabelled,
    add_children,
    observe_live_pipeline,
    observe_pipeline,
    observe_unlabelled,
    observe_unread,
)
from omni_operator.state.observed import Observed
from omni_operator.state.slim import can_slim, slim_child
from omni_operator.status.events import EventGate, compute_events
from omni_operator.status.publish import is_minor, live_status, write_events, write_status
from omni_operator.status.status import compute_invalid_status, compute_status, compute_too_many_status
from omni_operator.status.verdicts import ChildError
from omni_proto.pipeline import PipelineError

MAX_PASSES: Final = 5
"""Maximum passes of one reconcile. Each continues after the writes of the previous one, or with a newer pipeline."""
CONFLICT_RECHECK_S: Final = 30.0
"""Pause before checking whether another object still has a child's name: no watch reports that object's deletion."""
LIMIT_RECHECK_S: Final = 60.0
"""Pause before a pipeline beyond its namespace's limit is checked again: others may have been deleted by then."""
REPORTED_FAILURES: Final = 4
"""Consecutive failures after which the status reports even transient errors."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a reconcile."""

    result: str
    """unchanged, changed, conflict, refused (the pipeline, by the operator), denied (an object, by a quota or policy),
    error or gone."""
    retry: bool = False
    """Whether it failed and must be retried with growing pauses."""
    again_after_s: float | None = None
    """Seconds after which to reconcile again even if no event arrives; with retry, the shortest pause."""
    progressed: bool = False
    """With retry: whether some of its writes succeeded."""


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
        self._verified = Verified()
        self._events = EventGate()
        self._records_names = True  # False after a CRD that is older than the operator did not take them
        self.pod_monitors = False
        """Whether the cluster has PodMonitors and the settings enable them."""

    async def reconcile(self, key: NamespacedName, failures: int = 0) -> Report:
        """Bring one pipeline closer to its spec, and update its status. Raises ApiError, NotLeaderError.

        failures: number of consecutive failures before this call.
        """
        changed = False
        for is_last in (*[False] * (MAX_PASSES - 1), True):
            observed = observe_pipeline(self._store, key)
            if observed is None or "deletionTimestamp" in observed.pipeline["metadata"]:
                # The garbage collector deletes its children.
                self._status_written.pop(key, None)
                self._taken.discard(key)
                return Report("gone")
            with log_subject(key.namespace, key.name, observed.generation):
                step = await self._pass(key, observed, failures, is_last)
            if isinstance(step, Report):
                failed = step.result in ("denied", "error")
                return Report("changed", step.retry, step.again_after_s) if changed and not failed else step
            changed |= step
        return Report("changed", again_after_s=self._settings.debounce_s)

    async def _pass(self, key: NamespacedName, observed: Observed, failures: int, is_last: bool) -> Report | bool:
        """Run one pass on the observed state. Returns its Report.

        If another pass must follow, returns instead whether this one wrote.
        """
        now = self._clock.now(time.monotonic())
        scope = self._scope_of(key.namespace)
        # 1. Observe: done by the caller, except for children that no watch reports.
        if self._store.rank(key, self._settings.max_pipelines) >= self._settings.max_pipelines:
            refused = compute_too_many_status(observed, self._settings.max_pipelines, now)
            report = await self._publish(key, observed, refused, now, "refused")
            return replace(report, again_after_s=LIMIT_RECHECK_S)
        # 2. Parse the spec. For an invalid one (accepted by an older CRD) nothing is changed.
        try:
            pipeline = parse_live_pipeline(observed.pipeline)
        except PipelineError as error:
            return await self._publish(key, observed, compute_invalid_status(observed, str(error), now), now, "refused")
        # 3. to 5. Decide the rollout, build what is desired, plan the writes.
        decision = decide(pipeline, observed, self._build_settings(), now, self._verified)
        if decision.plan.unread:
            observed = await observe_unread(self._client, observed, decision.plan.unread)
            decision = decide(pipeline, observed, self._build_settings(), now, self._verified)
        self._slim(observed)
        unlabelled = Unlabelled()
        if decision.plan.apply and key in self._taken:
            unlabelled = await observe_unlabelled(self._client, observed, decision.plan.apply)
            if unlabelled.found:
                observed = add_children(observed, unlabelled.found)
                decision = decide(pipeline, observed, self._build_settings(), now, self._verified)
            if not unlabelled.found and not unlabelled.unknown:
                self._taken.discard(key)
        # 6. and 7. Apply, then prune.
        outcome = Outcome()
        if not decision.plan.is_empty:
            if not await self._is_fresh(key, observed):
                return False
            outcome = await apply_plan(
                self._client,
                self._store,
                scope,
                key.namespace,
                decision.plan,
                observed.children,
                unlabelled.unknown,
                self._verified,
                self._metrics,
            )
            if outcome.taken:
                self._taken.add(key)
            if (outcome.error is None or outcome.taken) and not is_last:
                # The queue gets no event for the operator's own writes, and they may make further writes possible.
                return True
        # 8. and 9. Status and events.
        errors = describe_failure(outcome, failures)
        status = compute_status(decision.pipeline, observed, decision.rollout, decision.plan, now, errors)
        report = await self._publish(key, observed, status, now, result_of(decision.plan, outcome))
        return _schedule(report, decision, outcome, now)

    def _slim(self, observed: Observed) -> None:
        """Drop the unused fields of stored children that were found to match the desired state; see slim_child."""
        for key, child in observed.children.items():
            if can_slim(child) and self._verified.holds(child):
                name = ObjectKey(key.kind, observed.namespace, key.name)
                self._store.shorten(name, version_of(child), slim_child)

    def _build_settings(self) -> BuildSettings:
        return BuildSettings(
            default_image=self._settings.default_image,
            cluster_domain=self._settings.cluster_domain,
            image_pull_policy=self._settings.image_pull_policy,
            pod_monitors=self.pod_monitors,
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

    async def _publish(
        self, key: NamespacedName, observed: Observed, status: dict[str, Any], now: datetime, result: str
    ) -> Report:
        """Write the status if it differs, and Events. A minor change (see `is_minor`) may be written later."""
        if self._records_names:
            status = {**status, "names": self._names.grant(key, now)}
        before = live_status(observed)
        if before == status:
            return Report(result)
        clock = asyncio.get_running_loop().time()
        wait = self._status_written.get(key, float("-inf")) + self._settings.status_pause_s - clock
        if wait > 0 and is_minor(before, status):
            return Report(result, again_after_s=wait)
        pipeline = await write_status(self._client, observed, status)
        self._metrics.count_status_write()
        self._status_written[key] = clock
        self._records_names = "names" in pipeline["status"]
        self._store.put_written(pipeline, self._scope_of(key.namespace))
        self._names.update(key)
        told = [
            event
            for found in compute_events(before, status)
            if (event := self._events.admit(observed.uid, found, clock)) is not None
        ]
        await write_events(self._client, observed, told, self._settings.identity, now)
        return Report(result if result != "unchanged" else "changed")


def describe_failure(outcome: Outcome, failures: int) -> list[ChildError]:
    """Returns what the status reports about a failed write: a refusal immediately, other errors only if they last."""
    error = outcome.error
    if error is None or error.retry is RetryClass.NEVER:
        return []
    if error.retry is not RetryClass.SLOWLY and failures < REPORTED_FAILURES:
        return []
    return [ChildError(outcome.failed, error.message)]


def result_of(plan: Plan, outcome: Outcome) -> str:
    """Returns the result of a reconcile that executed the plan; see Report.result."""
    if outcome.error is not None:
        return "denied" if isinstance(outcome.error, DeniedError) else "error"
    if plan.conflicts:
        return "conflict"
    return "changed" if outcome.writes else "unchanged"


def _schedule(report: Report, decision: Decision, outcome: Outcome, now: datetime) -> Report:
    """Returns the report with the time of the next reconcile."""
    error = outcome.error
    if error is not None:
        _log.info("failed on %s: %s", outcome.failed, error)
        return Report(report.result, error.retry is not RetryClass.NEVER, error.retry_after_s, outcome.writes > 0)
    pauses = [report.again_after_s] if report.again_after_s is not None else []
    if decision.plan.conflicts:
        pauses.append(CONFLICT_RECHECK_S)
    if decision.rollout.recheck_at is not None:
        pauses.append(max(1.0, (decision.rollout.recheck_at - now).total_seconds() + 1.0))
    return Report(report.result, again_after_s=min(pauses, default=None))
