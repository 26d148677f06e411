"""How many pods of each stage a request rate needs, by a table of step times. Pure: no simulation, no clock.

A pod's engine holds rate x time requests (Little's law), and its steps take longer the more it holds: the fixed point
of both is its mean batch. The batch varies as the number of Poisson arrivals does, more where a larger batch takes
longer. First audio is the sum of the steps before it, in that batch, and of the waits for steps that run. Every stage
must also keep up with playback. benchmarks/paced/ideal.py simulates the same pods; tests compare both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Final, NamedTuple

from omni_stage.errors import OmniStageError
from omni_stage.models.sim.tables import Table, audio_cost, interpolate
from omni_stage.vllm_adapter.scheduling.playback import GATHERED_ROWS

STAGES: Final = ("thinker", "talker", "decoder")
MOST_PODS: Final = 1000
AUDIBLE_S: Final = 0.05
"""A shorter gap counts as none."""
_CHEAPER: Final = 0.999
"""See virtual_time/windows.py."""
_ROUNDS: Final = 500
_LEAST_GAIN_S: Final = 1e-4
"""A further pod that makes first audio earlier by less than this does not help."""


class ObjectiveUnreachableError(OmniStageError):
    """No number of pods keeps the promise. str() says why, and what does."""


@dataclass(frozen=True, slots=True)
class Work:
    """The requests: equal ones, at random times."""

    rate: float
    """Requests a second."""
    speech_s: float
    """Seconds of speech in an answer."""
    prompt_tokens: int

    def text_tokens(self, table: Table) -> int:
        """Returns the tokens of an answer's text."""
        return max(2, round(self.speech_s / table.talker.seconds_per_text_token))

    def frames(self, table: Table) -> int:
        """Returns the frames of an answer's speech."""
        return max(1, math.ceil(self.speech_s * table.talker.frames_per_second))

    def times(self, factor: float) -> Work:
        """Returns the work with another rate."""
        return Work(self.rate * factor, self.speech_s, self.prompt_tokens)


@dataclass(frozen=True, slots=True)
class Promise:
    """What shall hold for `percentile` % of the answers, beside speech without a gap."""

    first_audio_s: float
    percentile: float = 95.0

    @property
    def deviations(self) -> float:
        """The percentile, in standard deviations of a normal distribution."""
        return NormalDist().inv_cdf(self.percentile / 100)


class Batch(NamedTuple):
    """What a pod's engine holds."""

    mean: float
    deviation: float

    def high(self, deviations: float) -> float:
        """Returns the batch at a percentile."""
        return self.mean + deviations * self.deviation


class _Delay(NamedTuple):
    """A random time in seconds."""

    mean: float
    variance: float


@dataclass(frozen=True, slots=True)
class StagePlan:
    """The pods of one stage."""

    pods: int
    requests: float
    """Mean number of requests in the engine of a pod. Of the decoder: of streams that play."""
    target_requests: float | None
    """The same at the highest rate that keeps the promise: for scaling.targetRequests. None for the decoder, whose
    engine has requests only while it computes a window."""


@dataclass(frozen=True, slots=True)
class CapacityPlan:
    """The pods of all stages, and what they give."""

    stages: Mapping[str, StagePlan]
    first_audio_s: float
    """First audio at the percentile."""
    alone_s: float
    """Mean first audio of a request alone."""
    most_rate: float
    """Highest rate at which these pods keep the promise, in requests a second."""


def plan_capacity(table: Table, work: Work, promise: Promise, most: Mapping[str, int] = {}) -> CapacityPlan:
    """Returns the fewest pods that keep the promise. most: requests that a pod's engine runs at once, by stage. Raises
    ObjectiveUnreachableError."""
    model = _Model(table, promise, most)
    alone = model.first_audio(work.times(1e-6), dict.fromkeys(STAGES, 1))
    if alone is None:
        raise ObjectiveUnreachableError("the speech of a single request has gaps with this table; take a faster GPU")
    pods = {stage: model.least_pods(stage, work) for stage in STAGES}
    while not model.keeps(work, pods):
        reached = model.first_audio(work, pods) or math.inf
        more = {stage: model.first_audio(work, {**pods, stage: pods[stage] + 1}) or math.inf for stage in STAGES}
        best = min(more, key=lambda stage: more[stage])
        if math.isinf(more[best]):
            best = "decoder"  # its waits make the gaps
        elif reached - more[best] < _LEAST_GAIN_S:
            raise ObjectiveUnreachableError(
                f"first audio is {reached:.3f} s at the {promise.percentile:g}th percentile however many pods there "
                f"are, and {alone:.3f} s for a request alone; allow more, or take a faster GPU"
            )
        pods[best] += 1
        if sum(pods.values()) > MOST_PODS:
            raise ObjectiveUnreachableError(f"{MOST_PODS} pods do not keep speech without gaps; take a faster GPU")
    for stage in STAGES:
        while pods[stage] > 1 and model.keeps(work, {**pods, stage: pods[stage] - 1}):
            pods[stage] -= 1
    reached = model.first_audio(work, pods) or math.inf
    factor = _highest(lambda factor: model.keeps(work.times(factor), pods))
    now, then = (model.requests(work.times(one), pods) for one in (1.0, factor))
    stages = {
        stage: StagePlan(pods[stage], now[stage], None if stage == "decoder" else max(1.0, then[stage]))
        for stage in STAGES
    }
    return CapacityPlan(stages, reached, alone, work.rate * factor)


def _highest(keeps: Callable[[float], bool]) -> float:
    """Returns the largest factor that still keeps a promise which 1.0 keeps."""
    low, high = 1.0, 2.0
    while keeps(high) and high < MOST_PODS:
        low, high = high, 2 * high
    while high - low > 1e-3 * low:
        middle = (low + high) / 2
        low, high = (middle, high) if keeps(middle) else (low, middle)
    return low


@dataclass(frozen=True, slots=True)
class _Model:
    table: Table
    promise: Promise
    most: Mapping[str, int]
    _cost: Callable[[int, int, bool], float] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_cost", audio_cost(self.table.decoder))

    def least_pods(self, stage: str, work: Work) -> int:
        """Returns the fewest pods with which a stage keeps up. Raises ObjectiveUnreachableError."""
        for pods in range(1, MOST_PODS + 1):
            if self._keeps_up(stage, work, pods):
                return pods
        raise ObjectiveUnreachableError(
            f"stage {stage} does not keep up with playback, or with the rate, with {MOST_PODS} pods either"
        )

    def keeps(self, work: Work, pods: Mapping[str, int]) -> bool:
        """Returns whether these pods keep the promise."""
        reached = self.first_audio(work, pods)
        return reached is not None and reached <= self.promise.first_audio_s

    def requests(self, work: Work, pods: Mapping[str, int]) -> dict[str, float]:
        """Returns the mean number of requests in a pod of each stage."""
        found = {"decoder": work.rate * work.speech_s / pods["decoder"]}
        for stage in ("thinker", "talker"):
            batch = self._batch(stage, work, pods[stage])
            found[stage] = batch.mean if batch is not None else math.inf
        return found

    def first_audio(self, work: Work, pods: Mapping[str, int]) -> float | None:
        """Returns first audio at the percentile, in seconds; None if a stage does not keep up."""
        thinks, speaks = (self._batch(stage, work, pods[stage]) for stage in ("thinker", "talker"))
        if thinks is None or speaks is None or not all(self._keeps_up(one, work, pods[one]) for one in STAGES):
            return None
        shape, frames = self.table.decoder, self.table.talker
        needed = min(shape.first_frames + shape.ahead_frames, work.frames(self.table))
        text = self._step("thinker", work, pods["thinker"])
        frame = self._step("talker", work, pods["talker"])
        text_s, frame_s = text(1 + thinks.mean), frame(1 + speaks.mean)
        # A frame needs a row of the text, and the first row comes with the second token.
        by_text = needed * text_s + frame_s
        by_frames = text_s + (work.prompt_tokens + 3) * frames.prompt_token_ms / 1000 + needed * frame_s
        if not self._follows(work, pods["decoder"], max(text_s, frame_s)):
            return None
        prompt_s = text_s + work.prompt_tokens * self.table.thinker.prompt_token_ms / 1000
        slow_text = needed * (text(1 + thinks.mean + thinks.deviation) - text_s)
        slow_frames = needed * (frame(1 + speaks.mean + speaks.deviation) - frame_s)
        waits = [_residual(min(1.0, thinks.mean), text_s), _residual(min(1.0, speaks.mean), frame_s)]
        waits.append(self._window_delay(work, pods["decoder"], frame_s))
        mean = prompt_s + max(by_text, by_frames) + sum(wait.mean for wait in waits)
        variance = slow_text**2 + (slow_frames**2 if by_frames > by_text else 0.0)
        variance += sum(wait.variance for wait in waits)
        return mean + self.promise.deviations * math.sqrt(variance)

    def _follows(self, work: Work, pods: int, frame_s: float) -> bool:
        """Returns whether the second window comes before the audio of the first one ends.

        Both wait for the decoder, so their waits differ only by chance.
        """
        new, later = self._window()
        shape, fps = self.table.decoder, self.table.talker.frames_per_second
        if work.frames(self.table) <= shape.first_frames:
            return True
        first_s, later_s = (
            self._cost(1, frames, False) / 1000 for frames in (shape.first_frames + shape.ahead_frames, later)
        )
        new = shape.next_frames if shape.most_frames is None else min(new, shape.first_frames)
        chance = self.promise.deviations * math.sqrt(2 * self._window_delay(work, pods, frame_s).variance)
        return new * frame_s + max(0.0, later_s - first_s) + chance <= shape.first_frames / fps + AUDIBLE_S

    def _keeps_up(self, stage: str, work: Work, pods: int) -> bool:
        """Returns whether each stream of a stage's pods gets as many steps as its playback takes."""
        deviations = self.promise.deviations
        if stage == "decoder":
            # Listeners have audio to wait with, so what counts is the requests of about two answers' time.
            arrivals = 2 * work.rate * work.speech_s
            high = (arrivals + deviations * math.sqrt(arrivals)) / (2 * work.speech_s) / pods
            return high * (self._windows(work) + 1) <= self._window_rate()
        batch = self._batch(stage, work, pods)
        if batch is None or batch.high(deviations) > self._most(stage, work):
            return False
        # The thinker is ahead of playback once it has written the text, so its pace counts only at the beginning.
        step = self._step(stage, work, pods)
        return stage == "thinker" or step(max(1.0, batch.high(deviations))) <= 1 / self.table.talker.frames_per_second

    def _most(self, stage: str, work: Work) -> float:
        """Returns how many requests a pod's engine can run: by its setting, and by the KV cache of whole requests."""
        shape = self.table.thinker if stage == "thinker" else self.table.talker
        tokens = work.prompt_tokens + self._tokens(stage, work)
        return min(self.most.get(stage, math.inf), (shape.kv_memory_mib << 20) / shape.kv_token_bytes / tokens)

    def _tokens(self, stage: str, work: Work) -> int:
        return work.text_tokens(self.table) if stage == "thinker" else work.frames(self.table)

    def _step(self, stage: str, work: Work, pods: int) -> Callable[[float], float]:
        """Returns the seconds of a step by its batch, with the prompts that it computes on average."""
        shape = self.table.thinker if stage == "thinker" else self.table.talker
        prompts = work.rate / pods * work.prompt_tokens * shape.prompt_token_ms / 1000
        curve = interpolate(shape.step_ms)
        return (lambda batch: curve(batch) / 1000 / (1 - prompts)) if prompts < 1 else (lambda batch: math.inf)

    def _batch(self, stage: str, work: Work, pods: int) -> Batch | None:
        """Returns the batch of a pod; None if it would grow without end."""
        step, most = self._step(stage, work, pods), self._most(stage, work)
        rate = work.rate / pods * self._tokens(stage, work)
        mean = 0.0
        for _ in range(_ROUNDS):
            before, mean = mean, rate * step(max(1.0, mean))
            if mean > most:
                return None
            if mean - before < 1e-4:
                break
        gain = rate * (step(mean + 1) - step(max(1.0, mean)))
        return Batch(mean, math.sqrt(mean / (1 - gain) / pods)) if gain < 1 else None

    def _window(self) -> tuple[int, int]:
        """Returns the new frames of a later window, and all that it computes."""
        shape = self.table.decoder
        new = shape.next_frames
        if shape.most_frames is not None:
            new = max(new, min(GATHERED_ROWS, shape.most_frames))
        return new, shape.back_frames + new + shape.ahead_frames

    def _windows(self, work: Work) -> float:
        """Returns the number of windows of a request after the first one."""
        return max(0.0, (work.frames(self.table) - self.table.decoder.first_frames) / self._window()[0])

    def _window_rate(self) -> float:
        """Returns the most windows that a decoder computes in a second."""
        count = self._largest_step()
        return count / self._cost(count, self._window()[1], False) * 1000

    def _largest_step(self) -> int:
        """Returns the number of windows in a step while more of them wait."""
        frames, count = self._window()[1], 1
        while count < self.table.decoder.max_batch:
            now, more = (self._cost(one, frames, False) / one for one in (count, count + 1))
            if more > now * _CHEAPER:
                break
            count += 1
        return count

    def _window_delay(self, work: Work, pods: int, frame_s: float) -> _Delay:
        """Returns the time from the frames of a first window to its audio. frame_s: seconds of the talker's step."""
        shape, frames = self.table.decoder, self._window()[1]
        rate = work.rate / pods
        first = min(shape.first_frames + shape.ahead_frames, work.frames(self.table))
        count, most = 1.0, self._largest_step()
        for _ in range(_ROUNDS):
            waiting = rate * (1 + self._windows(work)) * self._cost(round(count), frames, False) / 1000
            before, count = count, min(float(most), max(1.0, waiting))
            if abs(count - before) < 1e-3:
                break
        running_s = self._cost(round(count), frames, False) / 1000
        busy = min(1.0, rate * (1 + self._windows(work)) * running_s / count)
        # A stream gets a pod without another one, as long as there is one.
        wait = _residual(busy * _at_least(pods, work.rate * work.frames(self.table) * frame_s), running_s)
        # Later windows join the step of a first one if that saves time, and then it takes as long as theirs.
        alone, joined = self._cost(1, first, False), self._cost(2, frames, False)
        own_s = (running_s * 1000 if joined / 2 < alone * _CHEAPER and count > 1 else alone) / 1000
        # Other first windows are before it, unless one step computes them all.
        ahead = 0.0 if self._cost(2, first, False) / 2 < alone * _CHEAPER else min(0.9, rate * own_s)
        return _Delay(own_s + wait.mean / (1 - ahead), wait.variance / (1 - ahead) ** 2)


def _at_least(count: int, mean: float) -> float:
    """Returns the probability that a Poisson number is at least `count`."""
    if mean > 100:
        return 1 - NormalDist(mean, math.sqrt(mean)).cdf(count - 0.5)
    below = term = math.exp(-mean)
    for number in range(1, count):
        term *= mean / number
        below += term
    return max(0.0, 1 - below)


def _residual(busy: float, step_s: float) -> _Delay:
    """Returns the wait for the end of a step, if one runs with that probability."""
    mean = busy * step_s / 2
    return _Delay(mean, busy * step_s**2 / 3 - mean**2)
