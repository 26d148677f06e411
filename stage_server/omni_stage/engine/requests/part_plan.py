"""Splits an autoregressive request with streamed input into parts, and decides when it has ended. Pure.

vLLM 0.32 runs such a request as a resumable session (`v1/core/sched/scheduler.py`). The plan relies on these facts:

- Each part has its own max_tokens. When a part has sampled that many tokens, the session waits for the next part.
- After a stop token, the session also waits, because vLLM ends a session only on request. Nothing may follow a stop
  token. So the plan makes the next part only after the previous part has ended without a stop token, and at most one
  part is outstanding.
- When the next part arrives, vLLM drops the last sampled token, whose KV was not computed. So the next part begins with
  that token.
- All earlier tokens are the prompt of the next part. vLLM keeps the seeded generator, and the runner keeps the rows of
  earlier parts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from omni_stage.errors import ModelExecutionError
from omni_stage.models.component import EngineInput, FinishReason, InputPart


@dataclass(frozen=True, slots=True)
class PlannedPart:
    """One part, ready to be lowered."""

    input: EngineInput
    max_tokens: int
    last: bool


class PartPlan:
    """The parts of one request. Call `next` for a part, `observe` for each of its outputs, `next` again, and so on."""

    def __init__(self, budget: int) -> None:
        """`budget`: maximum number of tokens that all parts of the request may generate together; at least 1."""
        self._left = budget
        self._part: PlannedPart | None = None
        self._part_left = 0
        self._last_token: int | None = None

    def next(self, part: InputPart) -> PlannedPart:
        """Returns the next part with its share of the budget. Raises ModelExecutionError if a part is outstanding."""
        if self._part is not None:
            raise ModelExecutionError("a part of streamed input was made before the previous part had ended")
        tokens = self._left if part.max_tokens is None else min(part.max_tokens, self._left)
        engine_input = part.input
        if self._last_token is not None:
            engine_input = replace(engine_input, prompt={"prompt_token_ids": [self._last_token]})
        # A part that may use up the budget is the last one, even if more rows could arrive.
        self._part = PlannedPart(engine_input, tokens, last=part.last or tokens == self._left)
        self._part_left = tokens
        return self._part

    def observe(self, token_ids: list[int], part_ended: FinishReason | None) -> FinishReason | None:
        """Take one output of the outstanding part. Returns how the request ended, or None if it continues."""
        if token_ids:
            self._last_token = token_ids[-1]
            self._left -= len(token_ids)
            self._part_left -= len(token_ids)
        if part_ended is None:
            return None
        part, self._part = self._part, None
        # A part that ended before its max_tokens has reached max_model_len.
        ended = part is None or part.last or part_ended is not FinishReason.LENGTH or self._part_left > 0
        return part_ended if ended else None
