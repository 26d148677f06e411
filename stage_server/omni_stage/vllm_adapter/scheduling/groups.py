"""Decides which prompts wait until earlier requests have their first audio. No vLLM, no clock.

On a CPU, and for long prompts on a GPU, reading several prompts in one step saves no time over reading them one by one.
A step that reads a prompt then delays the first audio of every other request in the step, and no client hears anything
until the last prompt has been read. So requests run in groups. A group consists of the requests that have no audio yet.
Another prompt joins the group only if this costs the group at most as much time as it saves the requests that wait:

- Cost: each of the group's `unheard` requests waits while the prompt is read. The sum is `unheard` x the prompt's time.
- Saving: the `waiting` requests would otherwise wait for all steps that remain until the group has its first audio.
  Each of these steps has a fixed cost (what a step without tokens would take), which the waiting requests could have
  shared.

The fixed cost and the time per token are measured while the engine runs. A GPU reads a short prompt in less time than a
step's fixed cost, so all short prompts join there. All prompts join until steps of different sizes have been measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_FADE: Final = 0.98
"""Each step multiplies the weight of earlier steps by this, so about the last 50 steps count."""
_FEWEST_STEPS: Final = 8
"""Number of measured steps that an estimate needs."""


@dataclass(slots=True)
class StepCost:
    """A step's fixed cost and its cost per token: the least-squares line through the durations of recent steps."""

    _weight: float = 0.0
    _x: float = 0.0
    _y: float = 0.0
    _xx: float = 0.0
    _xy: float = 0.0
    _steps: int = 0

    def add(self, tokens: int, seconds: float) -> None:
        """Record a step."""
        self._weight = self._weight * _FADE + 1
        self._x = self._x * _FADE + tokens
        self._y = self._y * _FADE + seconds
        self._xx = self._xx * _FADE + tokens * tokens
        self._xy = self._xy * _FADE + tokens * seconds
        self._steps += 1

    def line(self) -> tuple[float, float] | None:
        """Returns (seconds of a step without tokens, seconds per token), neither below 0; None while unknown."""
        if self._steps < _FEWEST_STEPS:
            return None
        mean_x, mean_y = self._x / self._weight, self._y / self._weight
        variance = self._xx / self._weight - mean_x * mean_x
        if variance < 1.0:
            return None
        slope = max(0.0, (self._xy / self._weight - mean_x * mean_y) / variance)
        return max(0.0, mean_y - slope * mean_x), slope


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
        return self.unheard * prompt_tokens * per_token <= self.waiting * self.steps_left * fixed
