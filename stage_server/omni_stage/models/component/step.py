"""One output of a stage for one request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from omni_proto.brief import Brief
from omni_stage.exchange.arrays import Array
from omni_stage.exchange.engine_step import EngineStep, FinishReason
from omni_stage.exchange.reply_form import ToolCallPiece


@dataclass(slots=True, repr=False)
class StageStep(Brief):
    """One output of a stage for one request, for the client and for downstream stages. Deltas, not totals."""

    text: str = ""
    reasoning: str = ""
    """The reasoning that precedes the text, if a parser separates the two."""
    tool_calls: Sequence[ToolCallPiece] = ()
    token_ids: list[int] = field(default_factory=list)
    prompt_token_ids: list[int] | None = None
    tensors: Mapping[str, Array] = field(default_factory=dict)
    """Rows by name, as the output schema defines them, contiguous, on the CPU."""
    complete_tensors: frozenset[str] = frozenset()
    """Tensors that are known to get no more rows after this step, although the request continues."""
    audio: Array | None = None
    """float32 [samples] in [-1, 1] at the sample_rate_hz of the component's facts."""
    finish_reason: FinishReason | None = None
    stop_reason: str = ""
    submitted_ns: int | None = None
    """time.monotonic_ns() when a request with streamed input could start, because its first part had arrived; None if
    its input was complete."""
    scheduled_ns: int | None = None

    @classmethod
    def of(cls, step: EngineStep) -> StageStep:
        """Returns a new step with an engine step's text, token ids and finish reason.

        Assign further fields to the result. Do not use `dataclasses.replace`: this method is called for every token,
        and `replace` would take longer than everything else here.
        """
        made = cls.of_audio(step, None)
        made.text, made.token_ids, made.prompt_token_ids = step.text, step.token_ids, step.prompt_token_ids
        return made

    @classmethod
    def of_audio(cls, step: EngineStep, audio: Array | None) -> StageStep:
        """Returns a step with audio and an engine step's finish reason. The engine step's token ids have no meaning."""
        return cls(
            audio=audio,
            finish_reason=step.finish_reason,
            stop_reason=step.stop_reason,
            scheduled_ns=step.scheduled_ns,
        )
