"""Decides which prompts wait until the requests before them have their first audio. No vLLM, no clock.

Where prompts cost as much together as one by one (a CPU, or long prompts on a GPU), a step that reads prompts delays
all requests beside it whose first audio is not there yet. Without a rule everyone's first audio comes when the last
prompt has been read. So requests go in groups: one more prompt joins those before their first audio only while that
costs them less than it saves the requests that wait.

- It costs: each of the `unheard` requests before their first audio waits for the prompt, `unheard` x its seconds.
- It saves: `waiting` requests would otherwise wait for the steps that remain until this group is heard, whose fixed
  cost (a step without any token) they could have shared.

Both are measured while the engine steps. A GPU reads a short prompt in less than a step's fixed cost, so there all
prompts join. They also join until steps of different sizes were measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_FADE: Final = 0.98
"""Weight of the past at each step: the last 50 steps count."""
_FEWEST_STEPS: Final = 8
"""Number of measured steps from which on an estimate counts."""


@dataclass(slots=True)
class StepCost:
    """A step's fixed cost and its cost per token: a line through the seconds of recent steps, by least squares."""

    _weight: float = 0.0
    _x: float = 0.0
    _y: float = 0.0
    _xx: float = 0.0
    _xy: float = 0.0
    _steps: int = 0

    def add(self, tokens: int, seconds: float) -> None:
        """Note a step."""
        self._weight = self._weight * _FADE + 1
        self._x = self._x * _FADE + tokens
        self._y = self._y * _FADE + seconds
        self._xx = self._xx * _FADE + tokens * tokens
        self._xy = self._xy * _FADE + tokens * seconds
        self._steps += 1

    def line(self) -> tuple[float, float] | None:
        """Returns the seconds of a step without tokens and those per token, neither below 0; None while unknown."""
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
    """The requests of a step that are before their first audio, and those that wait to join them."""

    cost: tuple[float, float] | None
    """See StepCost.line."""
    unheard: int
    """Requests whose prompt is being read, or was, and whose first audio has not come."""
    waiting: int
    """Requests whose prompt waits."""
    steps_left: int
    """Steps until all the unheard ones have their first audio."""

    def admits(self, prompt_tokens: int, first_tokens: int) -> bool:
        """Returns whether the next prompt joins; counts it if so. Alone it always does."""
        if not self.unheard or self.cost is None or self._pays(prompt_tokens):
            self.unheard += 1
            self.waiting -= 1
            self.steps_left = max(self.steps_left, first_tokens)
            return True
        return False

    def _pays(self, prompt_tokens: int) -> bool:
        fixed, per_token = self.cost or (0.0, 0.0)
        return self.unheard * prompt_tokens * per_token <= self.waiting * self.steps_left * fixed
