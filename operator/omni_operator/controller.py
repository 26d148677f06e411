"""Connects the parts of the process: watches fill the store and queue pipelines, and workers reconcile them.

    watch of OmniPipelines --------+
    reflectors of children, pods --+--> store, queue --> workers --> Reconciler --> API server
    resync, won leadership --------+

Workers start once all first lists of at least one served namespace (or of the whole cluster) are complete. They write
only while this process holds the lease.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import logging
from collections.abc import Coroutine, Iterable
from itertools import chain
from typing import Any, Final

from omni_kube.api.client import ApiClient
from omni_kube.api.timing import RateLimiter
from omni_kube.api.transport import ApiConnection, Transport
from omni_kube.errors import ApiError, NotLeaderError
from omni_kube.lease import Leadership, LeaseTimes
from omni_kube.objects import Manifest, NamespacedName, ObjectKey
from omni_operator.kinds import PIPELINE_KIND, POD_MONITORS, ROUTE_KINDS
from omni_operator.process.activators import Activators
from omni_operator.process.kopf import PipelineWatch
from omni_operator.process.liveness import HttpEndpoints, check_alive, check_ready
from omni_operator.process.metrics import ConditionSample, Metrics, Readings, condition_samples
from omni_operator.process.pipeline_log import log_subject
from omni_operator.process.settings import OperatorSettings
from omni_operator.process.watches import Watches
from omni_operator.process.work_queue import WorkQueue
from omni_operator.reconcile import Reconciler
from omni_operator.rollout.policy import ENTRY_ROUTE
from omni_operator.scaling.scaler import Scaler
from omni_operator.state.model_names import ModelNames
from omni_operator.state.observe import new_store

RECONCILE_TIMEOUT_S: Final = 120.0
EDIT_PAUSE_S: Final = 0.05
"""Longest debounce time after an edit of the pipeline itself."""
RESYNC_SPREAD_S: Final = 30.0
"""A resync queues all pipelines, spread evenly over this time, or over half the resync interval if that is shorter."""
INTERRUPTION_PAUSE_S: Final = 3.0
"""Pause between an interruption of their watch and a list of the pipelines: API servers learn of a CRD one by one."""
OUTDATED_PAUSE_S: Final = 1.0
"""Pause before another attempt to reconcile a pipeline whose namespace is not listed yet, or may not be watched."""

_log = logging.getLogger(__name__)


class Controller:
    """One operator process. Call `start`, then `run`, then `stop`."""

    def __init__(self, settings: OperatorSettings, connection: ApiConnection) -> None:
        self._settings = settings
        self._metrics = Metrics(importlib.metadata.version("omnipipeline"))
        self._store = new_store()
        self._queue: WorkQueue[NamespacedName] = WorkQueue(
            debounce_s=settings.debounce_s,
            group_of=lambda key: key.namespace,
            max_per_group=max(1, settings.workers - 1),
        )
        self._conditions: dict[NamespacedName, tuple[ConditionSample, ...]] = {}
        limiter = RateLimiter(settings.api_qps, 2 * settings.api_qps)
        self._transport = Transport(connection, self._metrics)
        self._client = ApiClient(self._transport, limiter, self._ensure_leader)
        self._leadership = Leadership(
            self._transport,
            name=settings.lease_name,
            namespace=settings.lease_namespace,
            identity=settings.identity,
            on_change=self._leadership_changed,
            times=LeaseTimes(
                duration_s=settings.lease_duration_s,
                renew_deadline_s=settings.lease_duration_s * 2 / 3,
                retry_s=settings.lease_duration_s * 2 / 15,
            ),
        )
        self._pipelines = PipelineWatch(connection, settings.namespaces, self._pipeline_seen)
        self._watches = Watches(self._client, self._store, self._pipelines, self._enqueue, self._spawn)
        self._names = ModelNames(self._store, self._enqueue)
        self._reconciler = Reconciler(
            settings,
            self._client,
            self._transport.clock,
            self._store,
            self._metrics,
            self._pipelines.scope_of,
            self._names,
        )
        self._scaler = Scaler(settings, self._client, self._store, self._pipelines.scope_of, self._enqueue)
        self._reconciler.scale_notes = self._scaler.notes
        self._activators = Activators(settings.activator, self._enqueue_all)
        self._reconciler.refusal = self._watches.describe_refusal
        self._reconciler.pod_monitors = lambda: self._watches.has(POD_MONITORS)
        self._reconciler.activator = lambda: self._activators.current
        self._endpoints = HttpEndpoints(self._check_alive, self._check_ready, self._metrics.render)
        self._metrics.add_readings(
            Readings(
                watch_ages=self._watches.ages,
                conditions=lambda: chain.from_iterable(self._conditions.values()),
                queue_length=lambda: len(self._queue),
                longest_due_s=self._queue.longest_due_s,
                scale=self._scaler.all_notes,
            )
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._started = False
        self.failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        """Completed with the error when a task that should run forever has ended."""

    async def start(self) -> None:
        """Bind the ports, wait until the API server knows OmniPipelines, start all. Raises OperatorSettingsError."""
        settings = self._settings
        await self._endpoints.start(settings.health_port, settings.metrics_port, settings.address_file)
        await self._watches.start()
        await self._discover_optional_kinds()
        self._spawn(self._leadership.run())
        self._spawn(self._resync())
        self._spawn(self._scale())
        if settings.activator is not None:
            self._spawn(self._activators.run())
        for _ in range(settings.workers):
            self._spawn(self._work())
        self._started = True

    async def run(self, stop: asyncio.Event) -> None:
        """Work until SIGTERM, SIGINT or stop, then stop. Raises the error if anything else ended it."""
        await self._pipelines.run(self.stop, stop)

    async def stop(self) -> None:
        """End all work and release the lease. May be called twice."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if tasks:
            await self._leadership.release()
        await self._endpoints.stop()
        await self._transport.close()

    def _pipeline_seen(self, event_type: str | None, manifest: Manifest) -> None:
        concerned = self._watches.take_pipeline(event_type, manifest)
        # A shorter debounce than for children: a user waits for the effect of an edit, and children change in bursts.
        self._enqueue(concerned, min(EDIT_PAUSE_S, self._settings.debounce_s))
        self._note_conditions(NamespacedName(manifest["metadata"]["namespace"], manifest["metadata"]["name"]))

    async def _discover_optional_kinds(self) -> None:
        skip = set() if self._settings.pod_monitors else {POD_MONITORS}
        if ENTRY_ROUTE in self._settings.forbidden_fields:
            skip |= set(ROUTE_KINDS.values())
        await self._watches.discover_optional(*skip)

    async def _work(self) -> None:
        await self._watches.synced()
        while True:
            await self._leadership.won.wait()
            key = await self._queue.get()
            with log_subject(key.namespace, key.name):
                await self._work_on(key)

    async def _work_on(self, key: NamespacedName) -> None:
        if not self._watches.is_current(key.namespace):
            self._queue.done(key, OUTDATED_PAUSE_S)
            return
        started = asyncio.get_running_loop().time()
        try:
            # Not wait_for, which may lose a cancellation (before Python 3.12).
            async with asyncio.timeout(RECONCILE_TIMEOUT_S):
                report = await self._reconciler.reconcile(key, self._queue.failures(key))
        except NotLeaderError:
            self._queue.done(key)  # winning the lease queues all pipelines again
            return
        except (ApiError, TimeoutError) as error:
            asked_for_s = error.retry_after_s if isinstance(error, ApiError) else None
            result, pause = "error", self._queue.retry(key, asked_for_s or 0.0)
            level = logging.WARNING if self._queue.failures(key) in (1, 5) else logging.INFO
            _log.log(level, "failed, again in %.1f s: %s", pause, error or "took too long")
        except Exception:  # noqa: BLE001
            # A bug in a decision must not stop the other pipelines: it is logged, and this pipeline is retried.
            result, pause = "error", self._queue.retry(key)
            _log.exception("internal error, again in %.1f s", pause)
        else:
            result = report.result
            if report.retry:
                self._queue.retry(key, report.again_after_s or 0.0, progressed=report.progressed)
            else:
                self._queue.done(key, report.again_after_s)
            self._note_conditions(key)
        self._metrics.observe_reconcile(result, asyncio.get_running_loop().time() - started)

    async def _scale(self) -> None:
        await self._watches.synced()
        await self._scaler.run(self._leadership.won)

    async def _resync(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + self._settings.resync_s
        # CRDs that were applied together with this operator may be served only now.
        await asyncio.sleep(INTERRUPTION_PAUSE_S)
        await self._discover_optional_kinds()
        while True:
            if await self._pipelines.wait_interrupted(max(0.0, due - loop.time())) and loop.time() < due:
                await asyncio.sleep(INTERRUPTION_PAUSE_S)
                await self._watches.sweep()
                continue
            due = loop.time() + self._settings.resync_s
            await self._watches.sweep()
            await self._discover_optional_kinds()
            self._enqueue_all(spread_s=min(RESYNC_SPREAD_S, self._settings.resync_s / 2))

    def _enqueue(self, keys: Iterable[NamespacedName], delay_s: float | None = None) -> None:
        for key in keys:
            self._names.update(key)
            if self._store.has(ObjectKey(PIPELINE_KIND, *key)):
                self._queue.add(key, delay_s)
            else:
                # The pipeline was deleted: the garbage collector deletes its children.
                self._queue.forget(key)
                self._conditions.pop(key, None)

    def _enqueue_all(self, spread_s: float = 0.0) -> None:
        keys = self._store.keys(PIPELINE_KIND)
        for index, key in enumerate(keys):
            self._queue.add(NamespacedName(key.namespace, key.name), spread_s * index / len(keys))

    def _note_conditions(self, key: NamespacedName) -> None:
        pipeline = self._store.get(ObjectKey(PIPELINE_KIND, *key))
        if pipeline is None:
            self._conditions.pop(key, None)
        else:
            self._conditions[key] = condition_samples(pipeline)

    def _ensure_leader(self) -> float:
        return self._leadership.ensure()

    def _leadership_changed(self, leader: bool) -> None:
        self._metrics.set_leader(leader)
        if leader:
            self._queue.begin()
            self._enqueue_all()

    def _check_alive(self) -> list[str]:
        # Before the watches start there are no events to wait for.
        stuck_s = self._queue.stuck_s() if self._leadership.is_leader else 0.0
        return check_alive(self._watches.ages(refused=False), stuck_s) if self._started else []

    def _check_ready(self) -> list[str]:
        return check_ready(self._watches.unsynced() if self._started else [PIPELINE_KIND])

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.append(task)
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and not self.failed.done():
            self.failed.set_result(task.exception() or RuntimeError("a task that never ends has ended"))
