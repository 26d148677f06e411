"""Limits how much media the engine encodes in a step while other requests wait for their tokens. No vLLM, no clock.

A step ends for all its requests at once, so an image that one request brings delays the next token of every other. Two
bounds hold while there are others: a step encodes at most STEP_EMBEDS embeddings (or one medium, which cannot be
divided), and all encoding takes at most `share` of the engine's time. After a step that encoded, no other does until
the time that is owed for it has passed in steps without media. Requests without media pass those that wait.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from omni_stage.errors import ConfigurationError
from omni_stage.vllm_adapter.names import MEDIA_SHARE

DEFAULT_SHARE: Final = 0.5
STEP_EMBEDS: Final = 1024


@dataclass(frozen=True, slots=True)
class MediaStep:
    """A step that the engine computes."""

    began: float
    encodes: bool
    others: bool
    """Whether other requests waited for their tokens meanwhile."""


@dataclass(slots=True)
class MediaTurns:
    """Decides by the steps so far. Used from one thread."""

    share: float = DEFAULT_SHARE
    """Most of the engine's time that encoding may take while there are others; 1 sets no bound at all."""
    owed: float = 0.0
    """Seconds of steps without media that must pass before media are encoded again."""
    encoding: int = 0
    """Steps on their way that encode beside others: with asynchronous scheduling the next one is planned before."""
    _ended: float = -math.inf

    @classmethod
    def from_additional_config(cls, additional_config: object) -> MediaTurns:
        """Returns the turns by vllm_config.additional_config. Raises ConfigurationError."""
        value: Any = additional_config.get(MEDIA_SHARE) if isinstance(additional_config, Mapping) else None
        if value is None:
            return cls()
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
            raise ConfigurationError(f"{MEDIA_SHARE} must be above 0 and at most 1", field=MEDIA_SHARE)
        return cls(float(value))

    def room(self, *, others: bool) -> int | None:
        """Returns how many embeddings the next step may encode: 0 if media have to wait; None: no bound."""
        if self.share >= 1 or not others:
            return None
        return 0 if self.encoding or self.owed > 0 else STEP_EMBEDS

    def begin(self, now: float, *, encodes: bool, others: bool) -> MediaStep:
        """Note a step that begins. Returns it, for `end`."""
        step = MediaStep(now, encodes, others)
        self.encoding += _delays(step)
        return step

    def end(self, step: MediaStep, now: float) -> None:
        """Note that a step's outputs are there. Steps end in the order in which they began."""
        # A step that was planned early ran only after the one before it.
        seconds = now - max(step.began, self._ended)
        self._ended = now
        self.encoding -= _delays(step)
        if not step.others:
            self.owed = 0.0
        elif step.encodes:
            self.owed += seconds * (1 - self.share) / self.share
        else:
            self.owed = max(0.0, self.owed - seconds)


def _delays(step: MediaStep) -> bool:
    return step.encodes and step.others


def cap_budget(room: int, next_embeds: int, budget: int) -> int:
    """Returns the embeddings that a request may encode in a step: those that there is still room for, or one medium.

    `room`: what is left of STEP_EMBEDS, and all of it if nothing was taken yet. `next_embeds`: those of the request's
    next medium. `budget`: vLLM's, which the result never exceeds.
    """
    return min(budget, next_embeds if room == STEP_EMBEDS and next_embeds > room else room)
