"""Orders requests by when their audio will run out, and lets prompts wait for the first audio of earlier requests.

Requests of equal priority are ordered by due time (playback.py): if a step cannot hold all of them, the one whose audio
runs out first goes first, and if the KV cache is full, the one with the most audio ahead is preempted.

On a CPU, and for long prompts on a GPU, reading several prompts in one step saves no time over reading them one by one.
A step that reads a prompt then delays the first audio of every other request in the step, and no client hears anything
until the last prompt has been read. So requests run in groups. A group consists of the requests that have no audio yet.
Another prompt joins the group only if this costs the group at most as much time as it saves the requests that wait:

- Cost: each of the group's `unheard` requests waits while the prompt is read. The sum is `unheard` x the prompt's time.
- Saving: the `waiting` requests would otherwise wait for all steps that remain until the group has its first audio.
  Each of these steps has a fixed cost (what a step without tokens would take), which the waiting requests could have
  shared.

The fixed cost and the time per token are measured while the engine runs. A prompt that takes less time than a step's
fixed cost always joins: so do all short prompts on a GPU. All prompts join until steps of different sizes have been
measured.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from statistics import median_low
from typing import TYPE_CHECKING, Final, NamedTuple

from omni_stage.vllm_adapter.scheduling.playback import Listener, Pace

if TYPE_CHECKING:
    from vllm.v1.request import Request

_MEMORY: Final = 256
"""Number of steps after which a measured step is forgotten."""
_PER_SIZE: Final = 9
"""Number of recent steps of a size class (tokens up to the next power of two) that count."""
_MINIMUM_STEPS: Final = 8
"""Number of measured steps that an estimate needs."""
_SMALL_STEPS: Final = 3
_LARGE_STEPS: Final = 2
"""Number of steps, at least, of which each end of the line is the lower median: one slow step among them is ignored."""


class _Step(NamedTuple):
    number: int
    tokens: int
    seconds: float


@dataclass(slots=True)
class StepCost:
    """A step's fixed cost and its cost per token: a line from the small steps to the large ones.

    Both ends are medians. A step that compiles a kernel takes a hundred times as long as the next one of its size; a
    least-squares line follows such a step for hundreds of steps.
    """

    _classes: dict[int, deque[_Step]] = field(default_factory=dict)
    """Recent steps by the bit length of their tokens."""
    _steps: int = 0

    def add(self, tokens: int, seconds: float) -> None:
        """Record a step."""
        self._steps += 1
        steps = self._classes.setdefault(tokens.bit_length(), deque(maxlen=_PER_SIZE))
        steps.append(_Step(self._steps, tokens, seconds))

    def line(self) -> tuple[float, float] | None:
        """Returns (seconds of a step without tokens, seconds per token), neither below 0; None while unknown.

        No single slow step changes the line to that of a slower engine.
        """
        oldest = self._steps - _MEMORY
        classes = [[step for step in self._classes[size] if step.number > oldest] for size in sorted(self._classes)]
        small, used = _take(classes, _SMALL_STEPS)
        large, _ = _take(classes[: used - 1 : -1], _LARGE_STEPS)
        if self._steps < _MINIMUM_STEPS or len(small) < _SMALL_STEPS or len(large) < _LARGE_STEPS:
            return None
        tokens, seconds = median_low(step.tokens for step in small), median_low(step.seconds for step in small)
        per_token = max(0.0, median_low((step.seconds - seconds) / (step.tokens - tokens) for step in large))
        return max(0.0, seconds - per_token * tokens), per_token


def _take(classes: Sequence[Sequence[_Step]], minimum: int) -> tuple[list[_Step], int]:
    """Returns the steps of the first classes that have `minimum` steps together, and the number of these classes."""
    taken: list[_Step] = []
    for used, steps in enumerate(classes, 1):
        taken += steps
        if len(taken) >= minimum:
            return taken, used
    return taken, len(classes)


@dataclass(slots=True)
class Group:
    """The requests that have no audio yet, and those that wait to join them. Make a new one for each step."""

    cost: tuple[float, float] | None
    """See StepCost.line."""
    unheard: int
    """Requests whose prompt is being read or was read, and that have no audio yet."""
    waiting: int
    """Requests whose prompt waits to be read."""
    steps_left: int
    """Steps until all unheard requests have their first audio."""
    closed: bool = False
    """Set by the first refusal: later prompts must not overtake the refused one, or a long one could wait forever."""

    def admits(self, prompt_tokens: int, first_tokens: int) -> bool:
        """Returns whether the queue's next prompt joins the group, and counts it if so. Any prompt joins an empty
        group."""
        if self.closed or not self._pays(prompt_tokens):
            self.closed = True
            return False
        self.unheard += 1
        self.waiting -= 1
        self.steps_left = max(self.steps_left, first_tokens)
        return True

    def _pays(self, prompt_tokens: int) -> bool:
        fixed, per_token = self.cost or (0.0, 0.0)
        seconds = prompt_tokens * per_token
        return seconds <= fixed or self.unheard * seconds <= self.waiting * self.steps_left * fixed


class PlaybackOrder:
    """What OmniScheduler does around a step for requests whose tokens are played as audio. Used from one thread."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._listeners: dict[str, Listener] = {}
        self._cost = StepCost()
        self._group: Group | None = None
        self._last_end = -math.inf

    def __len__(self) -> int:
        return len(self._listeners)

    def add(self, request: Request, now: float) -> None:
        """Give a new request its place in the queue. The next part of a known request keeps the place."""
        if request.request_id not in self._listeners:
            listener = self._listeners[request.request_id] = Listener.at(now, request.num_tokens)
            request.arrival_time = listener.due

    def remove(self, request_id: str) -> None:
        """Forget a request that has ended."""
        self._listeners.pop(request_id, None)

    def before_schedule(self, running: list[Request], waiting: Iterable[Request], now: float) -> None:
        """Sort the running requests, and find the group that waiting prompts may join."""
        for request in running:
            request.arrival_time = self._listeners[request.request_id].note(self._pace, now, request.num_tokens)
        # Python's sort is stable, and takes one pass over a list that is in order already.
        running.sort(key=attrgetter("priority", "arrival_time"))
        if self._pace.heard_early:
            # Requests that wait for rows of the upstream stage are not in `running`, and delay no other request.
            lacks = [self._listeners[request.request_id].unheard(self._pace, request.num_tokens) for request in running]
            unheard = [steps for steps in lacks if steps]
            new = sum(map(_is_new, waiting))
            cost = self._cost.line() if new else None
            self._group = Group(cost, len(unheard), new, max(unheard, default=0))

    def admits(self, request: Request, running: Iterable[Request]) -> bool:
        """Returns whether a waiting request may join this step."""
        if self._group is None or not _is_new(request):
            return True
        if any(other.priority > request.priority for other in running):
            # A more urgent request joins, whatever that costs the others.
            return True
        return self._group.admits(request.num_prompt_tokens, self._pace.first_tokens)

    def after_step(self, tokens: int, scheduled: float, now: float) -> None:
        """Record a step of so many tokens that was scheduled at `scheduled` and whose outputs arrived `now`."""
        # With asynchronous scheduling steps overlap: count a step from when the previous step ended.
        if tokens:
            self._cost.add(tokens, now - max(scheduled, self._last_end))
        self._last_end = now


def _is_new(request: Request) -> bool:
    """Returns whether none of the request's prompt was read. A preempted request, or a session's next part, is not
    new."""
    return request.num_computed_tokens == 0 and request.num_output_tokens == 0 and not request.num_preemptions
