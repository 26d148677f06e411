"""Computes when the listener of a stream will run out of audio: the stream's due time. No vLLM, no clock.

Within a priority, the schedulers order diffusion windows and autoregressive requests by due time, the earliest first.
The due time of a waiting stream does not change, and the due times of new streams grow with the clock. So every waiting
stream eventually becomes the first one, however many streams begin after it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, TypeVar

from omni_stage.errors import ConfigurationError

PACE_KEY: Final = "omni_pace"
"""Key of vllm_config.additional_config: fields of Pace."""

FIRST_AHEAD_S: Final = 5.0
"""A stream's first audio is due this many seconds before the stream reached the engine. So first audio is served before
all streams that still have audio to play, and after streams that have been silent for longer than this. The first
windows of several streams are served in the order in which the streams reached the engine."""
GATHERED_ROWS: Final = 8
"""Most rows for which a window waits while its listener has audio. The largest number with a CUDA graph in code2wav."""
FIRST_OUTPUTS: Final = 9
"""The output with the prompt's rows, and the eight after it. `service/edges/outbox.py` sends their rows immediately."""
_T = TypeVar("_T")


def rows_to_gather(last: int) -> int:
    """Returns for how many rows the window after one of `last` rows waits.

    Each window has a fixed cost, on the GPU and in the stage server. The first one comes as soon as it can; from there
    the sizes double, because the listener's audio grows with each window.
    """
    return min(GATHERED_ROWS, 2 * last)


@dataclass(slots=True)
class Playback:
    """One listener, who plays audio from the first window on, and hears silence when no audio is left to play.

    Times are seconds of any monotonic clock.
    """

    runs_out: float | None = None
    """When the audio that was sent has been played; None before the first audio."""

    def due(self, now: float) -> float:
        """Returns when the next window must be ready. Streams with an earlier time are served first."""
        return now - FIRST_AHEAD_S if self.runs_out is None else self.runs_out

    def gathers_until(self, now: float, took: float = 0.0) -> float:
        """Returns until when the next window may wait for more rows; at most `now` means that it must not wait.

        At most half of the audio that the listener has is spent on waiting. The other half must cover at least twice
        the seconds that the last window `took`.
        """
        if self.runs_out is None:
            return now
        return min(now + (self.runs_out - now) / 2, self.runs_out - 2 * took)

    def add(self, now: float, seconds: float) -> None:
        """Record that `seconds` of audio were sent. If playback had run out before, it resumes `now`.

        So a stream's next due time is at least `now` plus `seconds`, however long its listener heard silence. A stage
        that is too slow for its streams therefore serves all of them in turn, not only the stream that is latest.
        """
        begin = now if self.runs_out is None else max(self.runs_out, now)
        self.runs_out = begin + seconds


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast a client plays the audio of the tokens."""

    tokens_per_second: float
    first_tokens: int = 1
    """Number of tokens that the first audio needs."""
    heard_early: bool = True
    """Whether tokens are played while the request runs (Stream edges)."""

    def __post_init__(self) -> None:
        """Raises ConfigurationError naming the field."""
        rate = self.tokens_per_second
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not math.isfinite(rate) or rate <= 0:
            raise ConfigurationError(f"{PACE_KEY}.tokens_per_second must be a positive number", field=PACE_KEY)
        if isinstance(self.first_tokens, bool) or not isinstance(self.first_tokens, int) or self.first_tokens < 1:
            raise ConfigurationError(f"{PACE_KEY}.first_tokens must be an integer of at least 1", field=PACE_KEY)
        if not isinstance(self.heard_early, bool):
            raise ConfigurationError(f"{PACE_KEY}.heard_early must be true or false", field=PACE_KEY)

    @classmethod
    def from_additional_config(cls, additional_config: object) -> Pace | None:
        """Returns the pace in vllm_config.additional_config; None if it holds none: no audio is played then.

        Raises ConfigurationError.
        """
        values: Any = additional_config.get(PACE_KEY) if isinstance(additional_config, Mapping) else None
        if values is None:
            return None
        known = [item.name for item in fields(cls)]
        if not isinstance(values, Mapping) or set(values) - set(known):
            raise ConfigurationError(
                f"additional_config.{PACE_KEY} must be a mapping of {', '.join(known)}", field=PACE_KEY
            )
        if "tokens_per_second" not in values:
            raise ConfigurationError(f"{PACE_KEY}.tokens_per_second is missing", field=PACE_KEY)
        return cls(**values)


@dataclass(slots=True)
class Listener:
    """The playback of a request's tokens."""

    begin: int
    """Number of the request's tokens before it has sampled any."""
    due: float
    """When the request's next token is due, in monotonic seconds; see Playback.due."""
    _heard: int = 0
    _playback: Playback = field(default_factory=Playback)

    @classmethod
    def at(cls, now: float, tokens: int) -> Listener:
        """Returns the listener of a request that arrived at time `now` with `tokens` tokens."""
        return cls(tokens, Playback().due(now))

    def unheard(self, pace: Pace, tokens: int) -> int:
        """Returns how many more tokens a request with `tokens` tokens needs for its first audio; 0 if it has enough."""
        return max(0, pace.first_tokens - (tokens - self.begin))

    def note(self, pace: Pace, now: float, tokens: int) -> float:
        """Record that the request has `tokens` tokens at time `now`. Returns when the next one is due."""
        made = tokens - self.begin
        if made > self._heard and made >= pace.first_tokens:
            self._playback.add(now, (made - self._heard) / pace.tokens_per_second)
            self._heard = made
            self.due = self._playback.due(now)
        return self.due


def order_step(outputs: Sequence[_T], count_before: Callable[[_T], int]) -> list[_T]:
    """Returns the outputs, with young requests first. Within young and old requests, the order is kept.

    `count_before` takes an output and returns how many outputs its request had before this step.

    Handling a step of 64 requests keeps the event loop busy for milliseconds, and vLLM lists the oldest requests first.
    The youngest requests would thus always be handled last. But the speech of a young request cannot begin without its
    first rows, whereas later rows are not urgent. The new order also shortens the time to the first token of text.
    """
    young: list[_T] = []
    others: list[_T] = []
    for output in outputs:
        (young if count_before(output) < FIRST_OUTPUTS else others).append(output)
    return young + others
