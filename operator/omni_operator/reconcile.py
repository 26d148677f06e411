"""One look at one pipeline: observe, decide, write. Idempotent; all that it knows is what the API says.

`_round` reads as numbered steps; every decision in it is a pure function of another module.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from omni_operator.apply import Outcome, apply_plan
from omni_operator.build_settings import BuildSettings
from omni_operator.client import ApiClient
from omni_operator.decide import Decision, decide, parse_live_pipeline
from omni_operator.errors import RetryClass
from omni_operator.logs import log_subject
from omni_operator.metrics import Metrics
from omni_operator.observe import (
    add_children,
    observe_live_pipeline,
    observe_pipeline,
    observe_unlabelled,
    update_children,
)
from omni_operator.observed import Observed
from omni_operator.settings import OperatorSettings
from omni_operator.store import PIPELINE_KIND, ObjectKey, PipelineKey, Store
from omni_proto.pipeline import PipelineError

MAX_ROUNDS: Final = 5
"""Rounds of one reconcile whose input turned out to be stale; the next comes by the queue."""
CONFLICT_RECHECK_S: Final = 30.0
"""Pause before a name that was taken is looked at again: no watch tells when a foreign object goes."""
REPORTED_FAILURES: Final = 4
"""Failures in a row after which the status tells even of errors that may pass by themselves."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Report:
    """What a look at a pipeline came to."""

    result: str
    """unchanged, changed, conflict, error or gone."""
    retry: bool = False
    """Whether it failed and has to be tried again with growing pauses."""
    again_after_s: float | None = None
    """When to look again though nothing may have changed by then; with retry, the least pause."""


class Reconciler:
    """The shell around the decisions: one for the process, `reconcile` for one pipeline at a time."""

    def __init__(
        self,
        settings: OperatorSettings,
        client: ApiClient,
        store: Store,
        metrics: Metrics,
        scope_of: Callable[[str], str],
    ) -> None:
        """scope_of gives the collection of the store that a namespace is watched by."""
        self._settings = settings
        self._client = client
        self._store = store
        self._metrics = metrics
        self._scope_of = scope_of
        self._status_written: dict[PipelineKey, float] = {}
        self.pod_monitors = False
        """Whether the cluster has PodMonitors, and they are wanted."""

    def build_settings(self) -> BuildSettings:
        """What builders get of the process's settings."""
        return BuildSettings(
            default_image=self._settings.default_image,
            cluster_domain=self._settings.cluster_domain,
            image_pull_policy=self._settings.image_pull_policy,
            pod_monitors=self.pod_monitors,
            hub_endpoint=self._settings.hub_endpoint,
        )

    async def reconcile(self, key: PipelineKey, failures: int = 0) -> Report:
        """Bring one pipeline closer to its spec and its status up to date. Raises ApiError, NotLeaderError.

        failures: how often this has failed in a row.
        """
        for _ in range(MAX_ROUNDS):
            observed = observe_pipeline(self._store, key)
            if observed is None or "deletionTimestamp" in observed.pipeline["metadata"]:
                # Its children are the garbage collector's.
                self._status_written.pop(key, None)
                return Report("gone")
            with log_subject(key.namespace, key.name, observed.generation):
                report = await self._round(key, observed, failures)
            if report is not None:
                return report
        return Report("changed", again_after_s=self._settings.debounce_s)

    async def _round(self, key: PipelineKey, observed: Observed, failures: int) -> Report | None:
        """One pass over what was observed; None if the pipeline itself was stale and must be observed again."""
        now = datetime.now(UTC)
        # 1. Observe: observed has it, but for children that our watches cannot see.
        # 2. Parse the spec; one that an older CRD let in leaves everything as it is.
        try:
            pipeline = parse_live_pipeline(observed.pipeline)
        except PipelineError as error:
            return await self._report_invalid(key, observed, error, now)
        # 3. to 5. Decide the rollout, build what is desired, plan the writes.
        decision = decide(pipeline, observed, self.build_settings(), now)
        if decision.plan.apply:
            found = await observe_unlabelled(self._client, observed, decision.plan.apply)
            if found:
                observed = add_children(observed, found)
                decision = decide(pipeline, observed, self.build_settings(), now)
        outcome = Outcome()
        if not decision.plan.is_empty:
            if not await self._is_fresh(key, observed):
                return None
            # 6. and 7. Apply, then prune.
            outcome = await apply_plan(
                self._client, self._store, self._scope_of(key.namespace), key.namespace, decision.plan, self._metrics
            )
            observed = update_children(observed, observe_pipeline(self._store, key))
        # 8. and 9. Status and events.
        return await self._report(key, observed, decision, outcome, failures, now)

    async def _is_fresh(self, key: PipelineKey, observed: Observed) -> bool:
        """Whether the pipeline is still the one that was decided upon: past every cache, before a round's first write.

        Without it a pipeline that was deleted while its watch was cut would get its children back.
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

    async def _report(
        self,
        key: PipelineKey,
        observed: Observed,
        decision: Decision,
        outcome: Outcome,
        failures: int,
        now: datetime,
    ) -> Report:
        error = outcome.error
        if error is not None:
            return Report("error", retry=error.retry is not RetryClass.NEVER, again_after_s=error.retry_after_s)
        return Report("changed" if outcome.writes else "unchanged")

    async def _report_invalid(
        self, key: PipelineKey, observed: Observed, error: PipelineError, now: datetime
    ) -> Report:
        return Report("error")
