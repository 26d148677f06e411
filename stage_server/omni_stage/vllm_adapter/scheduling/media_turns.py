"""Limits how much media the engine encodes in a step while other requests wait for their tokens. No clock.

A step ends for all its requests at the same time, so an image of one request delays the next token of every other
request. Two bounds apply while other requests wait for tokens. A step encodes at most STEP_EMBEDS embeddings, or one
larger medium, because a medium cannot be divided. And all encoding takes at most `share` of the engine's time: after a
step that encodes, no further step encodes until steps without media have taken enough time (the time that is `owed`).
Requests without media overtake requests whose media wait: those are taken out of vLLM's queue for the step, because
vLLM would not look past a request that cannot start.

Private interfaces of vLLM 0.32: `v1.core.sched.request_queue`, `v1.core.encoder_cache_manager`, `v1.request`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from vllm.v1.core.encoder_cache_manager import EncoderCacheManager
from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.request import Request, RequestStatus

from omni_stage.errors import ConfigurationError
from omni_stage.vllm_adapter.wiring.names import MEDIA_SHARE

DEFAULT_SHARE: Final = 0.5
STEP_EMBEDS: Final = 1024
_ACTIVE: Final = (RequestStatus.RUNNING, RequestStatus.WAITING, RequestStatus.PREEMPTED)
"""Statuses of requests that wait for tokens. A session that waits for its next part has another status."""


@dataclass(frozen=True, slots=True)
class MediaStep:
    """A step of the engine."""

    began: float
    encodes: bool
    others: bool
    """Whether other requests waited for tokens during the step."""


@dataclass(slots=True)
class MediaShare:
    """Decides how much media the next step may encode, from the steps so far. Used from one thread."""

    share: float = DEFAULT_SHARE
    """Largest share of the engine's time that encoding may take while other requests wait for tokens; 1 removes both
    bounds."""
    owed: float = 0.0
    """Seconds of steps without media that must pass before media are encoded again."""
    encoding: int = 0
    """Steps in flight that encode while other requests wait. With asynchronous scheduling, the next step is planned
    before such a step ends."""
    _ended: float = -math.inf

    @classmethod
    def from_additional_config(cls, additional_config: object) -> MediaShare:
        """Returns the share in vllm_config.additional_config, or the default. Raises ConfigurationError."""
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
        """Record a step that begins. Returns it, for `end`."""
        step = MediaStep(now, encodes, others)
        self.encoding += _delays(step)
        return step

    def end(self, step: MediaStep, now: float) -> None:
        """Record that a step's outputs have arrived. Steps end in the order in which they began."""
        # A step that was planned early ran only after the previous step had ended.
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
    """Returns how many embeddings a request may encode in a step: `room`, or those of its next medium if that is larger
    and the first in the step.

    `room`: how many of the step's STEP_EMBEDS are left. `next_embeds`: embeddings of the request's next medium.
    `budget`: vLLM's own limit, which the result never exceeds.
    """
    return min(budget, next_embeds if room == STEP_EMBEDS and next_embeds > room else room)


class MediaTurns:
    """What OmniScheduler does around a step of a model that takes media. Used from one thread."""

    def __init__(self, share: MediaShare) -> None:
        self._share = share
        self._others = False
        self._room: int | None = None
        """Embeddings that the step being planned may still encode."""

    def before_schedule(self, requests: Mapping[str, Request], waiting: RequestQueue) -> list[Request]:
        """Returns the requests that cannot start in this step, taken out of `waiting`; put them back after it."""
        media = {name for name, request in requests.items() if _awaits_media(request)}
        self._others = any(name not in media and request.status in _ACTIVE for name, request in requests.items())
        self._room = self._share.room(others=self._others)
        held = [request for request in waiting if request.request_id in media] if self._room == 0 else []
        if held:
            waiting.remove_requests(held)
        return held

    def budget(self, request: Request, computed: int, budget: int, cache: EncoderCacheManager) -> int:
        """Returns how many embeddings a request may encode in this step, at most `budget`."""
        return budget if self._room is None else cap_budget(self._room, _next_embeds(request, computed, cache), budget)

    def spend(self, embeds: int) -> None:
        """Record that the step encodes so many embeddings."""
        if self._room is not None:
            self._room = max(0, self._room - embeds)

    def after_schedule(self, began: float, *, encodes: bool) -> MediaStep:
        """Returns the step that was planned since `began`, for `after_step`."""
        return self._share.begin(began, encodes=encodes, others=self._others)

    def after_step(self, step: MediaStep, now: float) -> None:
        """Record that the step's outputs have arrived."""
        self._share.end(step, now)


def _awaits_media(request: Request) -> bool:
    """Returns whether the request has media in the part of its prompt that is not computed yet."""
    if not request.has_encoder_inputs:
        return False
    last = request.mm_features[-1].mm_position
    return bool(request.num_computed_tokens < last.offset + last.length)


def _next_embeds(request: Request, computed: int, cache: EncoderCacheManager) -> int:
    """Returns the number of embeddings of the request's next medium that is not encoded."""
    for index, feature in enumerate(request.mm_features):
        if feature.mm_position.offset + feature.mm_position.length <= computed:
            continue
        if cache.get_cached_num_encoder_embeds(request, index) is None:
            return int(request.get_num_encoder_embeds(index))
    return 0
