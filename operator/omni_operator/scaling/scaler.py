"""Follows the load of pipelines whose stages have scaling: reads the pods, decides, writes the OmniStages.

It writes nothing else: the reconcile that follows gives the Deployments the new number. What it remembers is lost when
the process ends, and then it starts as an HPA does: the present number of pods counts as the first recommendation.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from omni_kube.api.client import ApiClient
from omni_kube.errors import ApiError, NotLeaderError
from omni_kube.objects import Manifest, NamespacedName, ObjectKey, find_condition, is_terminating, parse_time, value_at
from omni_kube.store import Store
from omni_operator.kinds import PIPELINE_KIND, STAGES
from omni_operator.names import scale_target_name
from omni_operator.process.settings import OperatorSettings
from omni_operator.rollout.decide import read_live_spec
from omni_operator.rollout.replicas import ask_replicas, can_sleep, is_asleep, read_held
from omni_operator.scaling.budget import spend
from omni_operator.scaling.decision import StageAsk, StageLoad, StageMemory, decide_scale, find_pressed
from omni_operator.scaling.idle import idle_seconds, is_idle, ready_pods
from omni_operator.scaling.notes import ObjectivesNote, ScaleNotes, StageNote
from omni_operator.scaling.objectives import find_objectives, worst_excess
from omni_operator.scaling.readings import Reading, find_pairs, load_between
from omni_operator.scaling.scrape import Scraper
from omni_operator.state.live import LiveSet, LiveStage, compute_live_sets, live_serving_revision
from omni_operator.state.observe import observe_pipeline
from omni_operator.state.observed import Observed
from omni_operator.state.pod_causes import find_cause, lacks_capacity
from omni_proto.pipeline import OmniPipeline, order_stages
from omni_proto.pipeline.types.scaling import MAX_REPLICAS, STAGE_KIND, ScalingBehavior

EVERY_S: Final = 15.0
"""Seconds between two decisions: an HPA's default."""
START_S: Final = 60.0
"""Assumed time until a new pod serves, before one was seen."""
LONGEST_START_S: Final = 600.0
"""Longest time until a new pod serves that the trend looks ahead."""
CONCURRENT_PIPELINES: Final = 16
"""Pipelines that are decided at the same time."""
SILENT_S: Final = 2 * EVERY_S + 5.0
"""A pod that was not read for this long says nothing of the load. One reading may fail, and the next be late."""
KEPT_READINGS: Final = 256
"""Readings kept of a pod for objectives: an hour's window has 240."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Known:
    """What is remembered of one pipeline."""

    readings: dict[str, list[Reading]] = field(default_factory=dict)
    """Readings by the pods' uids, the oldest first."""
    memory: dict[str, StageMemory] = field(default_factory=dict)
    notes: ScaleNotes = field(default_factory=ScaleNotes)
    idle_since: float | None = None
    """Since when nobody uses it, in seconds of a monotonic clock; None if somebody does, or it is not known."""


class Scaler:
    """Decides for all pipelines of the store. One of it runs in a process."""

    def __init__(
        self,
        settings: OperatorSettings,
        client: ApiClient,
        store: Store,
        scope_of: Callable[[str], str],
        enqueue: Callable[[Iterable[NamespacedName]], None],
    ) -> None:
        """scope_of returns the scope of the watch that covers a namespace. enqueue: called with pipelines to
        reconcile."""
        self._settings = settings
        self._client = client
        self._store = store
        self._scope_of = scope_of
        self._enqueue = enqueue
        self._known: dict[NamespacedName, _Known] = {}

    def notes(self, key: NamespacedName) -> ScaleNotes | None:
        """Returns what was decided last for a pipeline; None if nothing was."""
        known = self._known.get(key)
        return known.notes if known is not None else None

    def all_notes(self) -> Iterable[tuple[NamespacedName, ScaleNotes]]:
        """Returns what was decided last for every pipeline."""
        return [(key, known.notes) for key, known in self._known.items()]

    async def run(self, leads: asyncio.Event) -> None:
        """Decide every EVERY_S seconds, while this process leads."""
        scraper = Scraper()
        try:
            while True:
                await leads.wait()
                began = asyncio.get_running_loop().time()
                await self._scale_all(scraper)
                await asyncio.sleep(max(1.0, began + EVERY_S - asyncio.get_running_loop().time()))
        finally:
            await scraper.close()

    async def _scale_all(self, scraper: Scraper) -> None:
        keys = {NamespacedName(key.namespace, key.name) for key in self._store.keys(PIPELINE_KIND)}
        self._known = {key: known for key, known in self._known.items() if key in keys}
        concerned = []
        for key in sorted(keys):
            pipeline = self._store.get(ObjectKey(PIPELINE_KIND, *key))
            if pipeline is not None and _concerns(pipeline):
                concerned.append(key)
            elif self._known.pop(key, None) is not None:
                self._enqueue([key])
        # Together: pods that do not answer must not delay other pipelines.
        slots = asyncio.Semaphore(CONCURRENT_PIPELINES)
        await asyncio.gather(*(self._try_scale(key, scraper, slots) for key in concerned))

    async def _try_scale(self, key: NamespacedName, scraper: Scraper, slots: asyncio.Semaphore) -> None:
        async with slots:
            try:
                await self._scale(key, scraper)
            except NotLeaderError:
                _log.debug("%s: this process no longer leads", key)
            except ApiError as error:
                _log.info("%s: scaling failed, and is tried again: %s", key, error)
            except Exception:  # noqa: BLE001 - a bug must not stop the scaling of the other pipelines
                _log.exception("%s: internal error in scaling", key)

    async def _scale(self, key: NamespacedName, scraper: Scraper) -> None:
        observed = observe_pipeline(self._store, key)
        if observed is None:
            return
        spec = read_live_spec(observed, self._settings.default_image, self._settings.policy)
        pipeline, serving = spec.pipeline, live_serving_revision(observed)
        if pipeline is None or serving is None or pipeline.spec.suspend or is_terminating(observed.pipeline):
            self._known.pop(key, None)
            return
        clock = self._client.transport.clock.now(time.monotonic())
        sets = compute_live_sets(observed, clock)
        live = sets.pop(serving, None) or LiveSet(serving)
        known = self._known.setdefault(key, _Known())
        held = read_held(pipeline, observed, live)
        if is_asleep(pipeline, held):
            self._rest(key, pipeline)
            return
        ready = {name: ready_pods(stage) for name, stage in live.stages.items()}
        began = time.monotonic()
        fresh = await _read(known, ready, scraper)
        loads = _loads(known, ready, began - SILENT_S)
        now = time.monotonic()
        asked = ask_replicas(pipeline, held)
        if can_sleep(pipeline):
            idle = spec.revision == serving and is_idle(asked, live, sets.values(), known.readings, began)
            known.idle_since = (known.idle_since or now) if idle else None
            if known.idle_since is not None and now - known.idle_since >= idle_seconds(pipeline):
                why = f"nobody used it for {now - known.idle_since:.0f} s"
                if await self._set(observed, next(iter(asked)), 0, why):
                    self._rest(key, pipeline)
                    self._enqueue([key])
                    return
        asks = [_ask(stage.name, pipeline, live, asked, clock) for stage in order_stages(pipeline)]
        objectives = _judge(pipeline, known, ready, loads, asks, now)
        _count(pipeline, known, ready, fresh)
        short = {}
        if objectives is not None and objectives.holds_back:
            short = {objectives.holds_back: worst_excess(objectives.findings)}
        decisions = decide_scale(asks, loads, known.memory, now, short)
        scaled = {stage.name: stage.scaling for stage in pipeline.spec.stages if stage.scaling is not None}
        notes = {}
        changed = False
        for ask in asks:
            if ask.name not in scaled:
                continue
            external, decision = scaled[ask.name].by == "External", decisions.get(ask.name)
            notes[ask.name] = StageNote.of(ask, decision, external=external)
            if not external and decision is not None and decision.replicas != held.get(ask.name):
                changed |= await self._set(observed, ask.name, decision.replicas, decision.why)
        changed |= known.notes.take(notes, objectives)
        if changed:
            self._enqueue([key])

    def _rest(self, key: NamespacedName, pipeline: OmniPipeline) -> None:
        """Forget what a pipeline that sleeps did: after it wakes, it has other pods."""
        known = self._known[key] = _Known()
        note = StageNote(0, 0, "nobody uses the pipeline")
        known.notes.take({stage.name: note for stage in pipeline.spec.stages}, None)

    async def _set(self, observed: Observed, stage: str, replicas: int, why: str) -> bool:
        """Write the number of pods into an OmniStage. Returns whether it was written. Raises ApiError, among them
        ConflictError if another client scaled it meanwhile."""
        live = observed.child(STAGE_KIND, scale_target_name(observed.name, stage))
        if live is None or not observed.owns(live) or "replicas" not in (live.get("spec") or {}):
            return False  # the reconcile makes it, with the number that the stage has
        change = {"metadata": {"resourceVersion": live["metadata"]["resourceVersion"]}, "spec": {"replicas": replicas}}
        after = await self._client.merge(STAGES, live, change, live["metadata"]["uid"])
        self._store.put_written(after, self._scope_of(observed.namespace))
        _log.info("%s/%s: stage %s to %d pods: %s", observed.namespace, observed.name, stage, replicas, why)
        return True


def _concerns(pipeline: Manifest) -> bool:
    spec = pipeline.get("spec") or {}
    stages = spec.get("stages")
    return bool(spec.get("objectives")) or (
        isinstance(stages, list) and any(isinstance(stage, dict) and stage.get("scaling") for stage in stages)
    )


async def _read(known: _Known, ready: Mapping[str, Mapping[str, Manifest]], scraper: Scraper) -> set[str]:
    """Returns the uids of the pods that were read."""
    addresses = {
        uid: str(value_at(pod, "status", "podIP", default="")) for pods in ready.values() for uid, pod in pods.items()
    }
    fresh = await scraper.read({uid: address for uid, address in addresses.items() if address})
    known.readings = {uid: rows for uid, rows in known.readings.items() if uid in addresses}
    for uid, one in fresh.items():
        known.readings[uid] = [*known.readings.get(uid, [])[1 - KEPT_READINGS :], one]
    return set(fresh)


def _loads(known: _Known, ready: Mapping[str, Mapping[str, Manifest]], since: float) -> dict[str, StageLoad]:
    loads = {}
    for name, pods in ready.items():
        pairs = find_pairs((known.readings.get(uid, ()) for uid in pods), since)
        if (load := load_between(pairs, len(pods))) is not None:
            loads[name] = load
    return loads


def _ask(name: str, pipeline: OmniPipeline, live: LiveSet, asked: Mapping[str, int], now: datetime) -> StageAsk:
    stage, pods = pipeline.stage(name), live.stage(name)
    scaling = stage.scaling
    cause = find_cause(pods, now) if lacks_capacity(pods) else None
    return StageAsk(
        name=name,
        above=stage.inputs[0].source if stage.inputs else None,
        current=asked[name],
        least=(scaling.min_replicas if scaling is not None else None) or 1,
        most=(scaling.max_replicas if scaling is not None else None) or MAX_REPLICAS,
        behavior=scaling.behavior if scaling is not None else ScalingBehavior(),
        target=scaling.target_requests if scaling is not None else None,
        start_s=_start_seconds(pods),
        blocked=cause.message if cause is not None else "",
        fixed=scaling is None,
    )


def _start_seconds(pods: LiveStage) -> float:
    """Returns how long the stage's pods took from their creation until they were ready: the median."""
    times = sorted(
        (parse_time(ready["lastTransitionTime"]) - parse_time(pod["metadata"]["creationTimestamp"])).total_seconds()
        for pod in pods.pods
        if (ready := find_condition(pod, "Ready") or {}).get("status") == "True" and "lastTransitionTime" in ready
    )
    return min(max(times[len(times) // 2], 1.0), LONGEST_START_S) if times else START_S


def _count(
    pipeline: OmniPipeline, known: _Known, ready: Mapping[str, Mapping[str, Manifest]], fresh: Collection[str]
) -> None:
    """Add the answers since the last reading to the budgets of the objectives."""
    objectives = pipeline.spec.objectives
    if objectives is None:
        known.notes.budgets = {}
        return
    entry = next(stage.name for stage in pipeline.spec.stages if not stage.inputs)
    rows = (known.readings[uid] for uid in ready.get(entry, ()) if uid in fresh)
    known.notes.budgets = spend(known.notes.budgets, objectives, find_pairs(rows, -math.inf))


def _judge(
    pipeline: OmniPipeline,
    known: _Known,
    ready: Mapping[str, Mapping[str, Manifest]],
    loads: Mapping[str, StageLoad],
    asks: Sequence[StageAsk],
    now: float,
) -> ObjectivesNote | None:
    """Returns what was measured of the objectives; None without any."""
    objectives = pipeline.spec.objectives
    if objectives is None:
        return None
    entry = next(ask.name for ask in asks if ask.above is None)
    pairs: list[tuple[Reading | None, Reading]] = []
    for uid in ready.get(entry, ()):
        rows = [one for one in known.readings.get(uid, ()) if one.at >= now - objectives.window - EVERY_S]
        if len(rows) > 1:
            pairs.append((rows[0], rows[-1]))
    findings = find_objectives(objectives, pairs)
    holds_back = find_pressed(asks, loads) if any(one.is_missed for one in findings) else ""
    return ObjectivesNote(findings, holds_back)
