"""How many pods each stage needs: one pure function over what the pods report.

A stage's need is the number of requests in its engines, running and waiting, over those that one pod shall have. By
Little's law that is its arrival rate times the time that a request takes, so it needs no model of the engine. Time
that a request spends in other stages does not count: so only the stage that is short grows.

A queue is not load: it holds all that came during a shortage, and is gone by the time that pods for all of it would
serve. While it gets shorter, it does not count; and at its end, what runs counts as far as requests still arrive.
Otherwise it counts as far as more requests arrive than are answered, or by MOST_GROWTH: callers that wait for their
answers send no more than are answered, however few the pods are.

Three things are not in that number yet, and are added:

inflow   requests that wait in the stage above. Once that stage has the pods for them, they arrive here.
trend    what a pod that is asked for now meets when it is ready: the need grows on as it did in the last minute.
bursts   what each of BURSTS bursts needed lately, the next one needs too, and pods for it would start too late.

Pods that do not start, because the cluster has no room, end the growth: more of them would not start either, and the
stages below would get no more requests.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from omni_operator.scaling.damping import History, damp
from omni_proto.pipeline.types.scaling import ScalingBehavior

TARGET_SHARE: Final = 0.7
"""Share of the requests that an engine works on at once, at which a stage has enough pods."""
TOLERANCE: Final = 0.1
"""A need that differs by less from the present number of pods changes nothing, as with an HPA."""
STABLE_S: Final = 60.0
"""The need is a mean over this time, unless it rises faster."""
TURN_S: Final = 600.0
"""For so long after it shrank, a stage grows only beyond TURN_TOLERANCE; and for so long after it turned, it does not
begin to shrink."""
TURN_TOLERANCE: Final = 0.2
MARGIN: Final = 0.1
"""Share of the need that a step down leaves on top."""
TURN_MARGIN: Final = 0.2
"""The same for the first step down after a step up, which may be noise."""
ELASTICITY: Final = 0.25
"""Pods with fewer requests work faster, so a stage with too many of them seems to need less than it will: the need
grows with this power of the ratio by which the pods become fewer. For step times of LLMs on GPUs it is 0.2 to 0.25."""
SURGE: Final = 1.3
"""The last reading alone counts if it is this many times the mean: a burst shall not wait for the mean."""
MOST_GROWTH: Final = 1.5
"""Missed objectives, and a queue that does not grow, raise the need by at most this factor: they are guesses."""
MOST_TREND: Final = 1.25
"""The trend raises the need by at most this factor: a burst is no trend, and the need follows it by itself."""
BURSTS: Final = 3
BURSTS_S: Final = 1800.0
"""A stage keeps the pods that each of BURSTS bursts needed within BURSTS_S."""
BURST: Final = 2.0
"""A burst rises by this factor, and falls by it."""
DRAIN_S: Final = 60.0
"""A queue that gets shorter asks for no fewer pods than those that end it within this time."""
FREE_WAIT: Final = 0.1
"""Waiting requests below this share of the running ones are the engine's own first step."""


@dataclass(frozen=True, slots=True)
class StageLoad:
    """What the ready pods of a stage report: means since the reading before."""

    running: float
    """Requests that the engines of all pods work on."""
    waiting: float
    """Requests that wait for these engines."""
    limit: float
    """Requests that the engine of one pod works on at once."""
    arrivals: float = 0.0
    """Requests that arrive per second."""
    answered: float = 0.0
    """Requests that are answered per second."""

    @property
    def requests(self) -> float:
        """Requests in the stage's engines that count as load."""
        if self.answered <= 0:
            return self.running + self.waiting
        growth = self.arrivals / self.answered
        if growth < 1.0:
            return self.running * self.drain
        return min(self.running + self.waiting, self.running * max(MOST_GROWTH, growth))

    @property
    def drain(self) -> float:
        """Share of the running requests that arrivals need, while a queue gets shorter and is nearly gone; else 1."""
        if self.waiting <= self.running * FREE_WAIT or self.answered <= self.arrivals:
            return 1.0
        return min(1.0, (self.arrivals + self.waiting / DRAIN_S) / self.answered)


@dataclass(frozen=True, slots=True)
class StageAsk:
    """A stage, and what bounds its number of pods."""

    name: str
    above: str | None
    """The stage that it reads from."""
    current: int
    """Number of pods that it shall have at present."""
    least: int
    most: int
    behavior: ScalingBehavior
    target: float | None = None
    """Requests that a pod shall have; None: TARGET_SHARE of the engine's limit."""
    start_s: float = 60.0
    """Seconds until a new pod serves."""
    blocked: str = ""
    """Why pods that are asked for do not start, if the cluster has no room for them."""
    fixed: bool = False
    """Whether its number does not follow the load. Its load still counts for the stages below."""


@dataclass(slots=True)
class StageMemory:
    """What is remembered of one stage between decisions."""

    history: History = field(default_factory=History)
    seen: tuple[float, int] | None = None
    """When it was last decided, and the number of pods that it should have then."""
    needs: list[tuple[float, float]] = field(default_factory=list)
    """Needs in pods, without trend, by their time in seconds; the oldest first."""


@dataclass(frozen=True, slots=True)
class StageDecision:
    """The number of pods for one stage, and why."""

    replicas: int
    """The number to set now."""
    desired: int
    """The number that the load needs, before bounds and behavior."""
    why: str
    """The reason, for people."""
    limited: bool = False
    """Whether a bound of scaling is below what the load needs."""


def decide_scale(
    asks: Sequence[StageAsk],
    loads: Mapping[str, StageLoad],
    memory: dict[str, StageMemory],
    now: float,
    short: Mapping[str, float] = {},
) -> dict[str, StageDecision]:
    """Returns the decision for each stage that follows its load and whose load is known.

    asks: all stages, each after the one that it reads from. short: by how much objectives are missed, at the stage that
    holds them back: 1.5 means that something takes 1.5 times as long as promised. memory is updated. now: seconds of a
    monotonic clock.
    """
    decisions: dict[str, StageDecision] = {}
    inflow: dict[str, float] = {}
    for ask in asks:
        load = loads.get(ask.name)
        above = inflow.get(ask.above or "", 1.0)
        inflow[ask.name] = above
        if load is None:
            continue
        target = target_of(ask, load)
        # Pods that do not become more already do what they can.
        room = load.running if ask.fixed or ask.blocked else ask.most * target
        inflow[ask.name] = above * _released(load, room)
        if ask.fixed:
            continue
        held = memory.setdefault(ask.name, StageMemory())
        need = _steady(held, load.requests * above / target, now)
        # The window of an objective also holds what was before the last change, so the need bounds this growth too.
        missed = min(ask.current * short[ask.name], need * MOST_GROWTH) if ask.name in short else 0.0
        needed = max(need * min(MOST_TREND, _trend(held, ask.start_s, now)), missed)
        # Who sets a window of their own decides how long pods stay.
        if ask.behavior.scale_down.stabilization_window_seconds is None:
            needed = max(needed, _recurring([known for _, known in held.needs]))
        if held.seen is not None and ask.current != held.seen[1]:
            # A change, which anybody may have made, followed the decision before.
            held.history.move(held.seen[0], ask.current - held.seen[1])
        decisions[ask.name] = _decide(ask, load, target, needed, held.history, now, is_short=ask.name in short)
        held.seen = now, ask.current
    return decisions


def find_pressed(asks: Sequence[StageAsk], loads: Mapping[str, StageLoad]) -> str:
    """Returns the stage with most requests for the pods that it has; empty if no load is known."""
    pressures = {
        ask.name: loads[ask.name].requests / (target_of(ask, loads[ask.name]) * max(1, ask.current))
        for ask in asks
        if ask.name in loads
    }
    return max(pressures, key=lambda name: pressures[name], default="")


def target_of(ask: StageAsk, load: StageLoad) -> float:
    """Returns the number of requests that a pod of the stage shall have."""
    return ask.target or max(1.0, TARGET_SHARE * load.limit)


def _decide(
    ask: StageAsk, load: StageLoad, target: float, needed: float, history: History, now: float, *, is_short: bool
) -> StageDecision:
    desired = math.ceil(round(needed, 3)) or 1
    moved_at, change = history.moves[-1] if history.moves else (-math.inf, 0)
    above = TURN_TOLERANCE if change < 0 and now - moved_at < TURN_S else TOLERANCE
    if not is_short and 1 - TOLERANCE <= needed / max(1, ask.current) <= 1 + above:
        desired = ask.current
    if not history.recommended:
        history.note(now, ask.current)
    wanted = min(desired, ask.current) if ask.blocked else desired
    held = wanted
    if wanted < ask.current:
        spare = 1 + MARGIN
        if change > 0:
            spare = max(1 + TURN_MARGIN, (ask.current / max(needed, 1e-3)) ** ELASTICITY)
        held = wanted = min(ask.current, math.ceil(round(needed * spare, 3)) or 1)
        own = ask.behavior.scale_down.stabilization_window_seconds is not None
        if change > 0 and not own and now - history.turned_at < TURN_S:
            held = ask.current
    replicas = damp(ask.current, held, ask.least, ask.most, ask.behavior, history, now)
    history.note(now, wanted)
    said = (
        f"{load.running:.1f} requests run, {load.waiting:.1f} wait, {target:.1f} are right for a pod: needs {desired}"
    )
    if is_short:
        said += ", because it holds an objective back"
    if ask.blocked and desired > ask.current:
        said += f"; not raised, because pods do not start: {ask.blocked}"
    elif replicas != desired:
        bound = "minReplicas" if desired < ask.least else "maxReplicas" if desired > ask.most else "behavior"
        said += f"; {replicas} by {bound}"
    return StageDecision(replicas, desired, said, limited=desired > ask.most)


def _released(load: StageLoad, room: float) -> float:
    """Returns by how much the output of a stage grows once its waiting requests run too, for which it has `room`."""
    if load.running <= 0:
        return 1.0
    if load.drain < 1.0:
        return load.drain
    return max(1.0, min(load.requests, room) / (load.running * (1 + FREE_WAIT)))


def _steady(held: StageMemory, need: float, now: float) -> float:
    """Add a need to the memory. Returns the mean over STABLE_S, or the need itself if it surges."""
    held.needs = [(at, known) for at, known in held.needs if at > now - BURSTS_S]
    held.needs.append((now, need))
    recent = [known for at, known in held.needs if at > now - STABLE_S]
    mean = sum(recent) / len(recent)
    return need if need > SURGE * mean else mean


def _trend(held: StageMemory, ahead_s: float, now: float) -> float:
    """Returns the factor by which the need will have grown in ahead_s seconds, as it did in the last minute."""
    late = [known for at, known in held.needs if at > now - STABLE_S]
    early = [known for at, known in held.needs if now - 2 * STABLE_S < at <= now - STABLE_S]
    if len(early) < 2 or not sum(early):
        return 1.0
    ratio = (sum(late) / len(late)) / (sum(early) / len(early))
    # The two means are STABLE_S apart, and the later one is half of that old.
    return 1.0 if ratio <= 1 + TOLERANCE / 2 else 1.0 + (ratio - 1.0) * (ahead_s + STABLE_S / 2) / STABLE_S


def _recurring(needs: Sequence[float]) -> float:
    """Returns the need that each of BURSTS bursts reached; 0 if there were fewer."""
    peaks: list[float] = []
    edge, rises = 0.0, True
    for need in needs:
        if rises and need * BURST < edge:
            peaks.append(edge)
            rises = False
        elif not rises and need > edge * BURST:
            rises = True
        else:
            need = max(edge, need) if rises else min(edge, need)
        edge = need
    if rises:
        peaks.append(edge)
    return sorted(peaks)[-BURSTS] if len(peaks) >= BURSTS else 0.0
