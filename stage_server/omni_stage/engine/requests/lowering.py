"""Turns a stage's request into vLLM's prompt and parameters, also where the request's input comes in parts.

A reply that the caller gives is read with the prompt, in one prefill. The stage then publishes the reply as if the
engine had sampled it. A sampled reply of n tokens has rows for the prompt and for its first n - 1 tokens. Its last
token ends the text: the model samples it, but never gets it as input. A given reply has no such token. So one prefill
of the prompt and the given reply gives exactly the rows of a sampled reply with the same text. The token that the
engine samples after the prefill is discarded.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from vllm import PoolingParams, SamplingParams
from vllm.sampling_params import RequestOutputKind

from omni_stage.engine.requests.conflicts import EngineTraits
from omni_stage.engine.requests.request import OmniEngineCoreRequest
from omni_stage.engine.requests.sampling import lower_sampling
from omni_stage.errors import ModelExecutionError, PromptTooLongError
from omni_stage.exchange import ReplyTokens
from omni_stage.models.component import (
    Component,
    EngineInput,
    EngineStep,
    FinishReason,
    InputPart,
    StageRequest,
    UserPrompt,
)
from omni_stage.vllm_adapter.core.interface import CorePart, Params
from omni_stage.vllm_adapter.text_parsers import structured_sampling


def check_room(prepared: EngineInput, max_model_len: int) -> None:
    """Refuse a prompt and reply that are too long together. Raises PromptTooLongError.

    The length of a prompt with media is not known yet: vLLM checks it later.
    """
    tokens = len(prepared.prompt.get("prompt_token_ids") or ())
    if prepared.reply is not None and tokens >= max_model_len:
        raise PromptTooLongError(
            f"prompt and reply have {tokens} tokens together, at most {max_model_len - 1} fit; send the reply in parts",
            field="start.reply",
            limit=f"{max_model_len - 1} tokens",
            actual=f"{tokens} tokens",
        )


def as_if_sampled(step: EngineStep, reply: ReplyTokens) -> EngineStep:
    """Returns the step that the engine would have returned if it had sampled the reply, but without the end token.


    The prompt of the given step ends with the reply's tokens. Raises ModelExecutionError if the step is not the only
    step of the request.
    """
    if step.prompt_token_ids is None or step.finish_reason is None:
        raise ModelExecutionError("a request with a given reply took more than one step")
    prompt_length = len(step.prompt_token_ids) - len(reply.token_ids)
    tensors = dict(step.tensors)
    positions = tensors.get("mrope_positions")
    if positions is not None:
        # Keep only the positions of the prompt: the component takes their number as the start of the reply. The value
        # of mrope_delta stays the same, because each token of the reply takes one position.
        tensors["mrope_positions"] = positions[:prompt_length]
    return replace(
        step,
        token_ids=list(reply.token_ids),
        text=reply.text,
        prompt_token_ids=step.prompt_token_ids[:prompt_length],
        cached_tokens=min(step.cached_tokens, prompt_length),
        tensors=tensors,
        finish_reason=FinishReason.STOP,
        stop_reason="",
    )


@dataclass(frozen=True, slots=True)
class PlannedPart:
    """One part, ready to be lowered."""

    input: EngineInput
    max_tokens: int
    last: bool


class PartPlan:
    """The parts of an autoregressive request with streamed input, and when it has ended.

    Call `next` for a part, `observe` for each of its outputs, `next` again, and so on. vLLM 0.32 runs such a request as
    a resumable session (`v1/core/sched/scheduler.py`), on these facts:

    - Each part has its own max_tokens. When a part has sampled that many tokens, the session waits for the next part.
    - After a stop token, the session also waits, because vLLM ends a session only on request. Nothing may follow a stop
      token. So the next part is made only after the previous part has ended without a stop token.
    - When the next part arrives, vLLM drops the last sampled token, whose KV was not computed. So the next part begins
      with that token.
    - All earlier tokens are the prompt of the next part. vLLM keeps the seeded generator, and the runner keeps the rows
      of earlier parts.
    """

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


@dataclasses.dataclass(frozen=True, slots=True)
class Lowering:
    """Turns the requests of one started engine into vLLM's prompts and parameters ("lowers" them)."""

    component: Component
    traits: EngineTraits
    generation_defaults: Mapping[str, Any]
    captures_rows: bool
    """Whether the runner captures the rows that the stage publishes."""

    def params(self, request: StageRequest, prepared: EngineInput) -> Params:
        """Returns vLLM's parameters of the whole request."""
        if self.component.facts.kind.is_one_shot:
            return PoolingParams()
        return self.sampling_params(request, prepared)

    def sampling_params(self, request: StageRequest, prepared: EngineInput) -> SamplingParams:
        """Returns vLLM's parameters of an autoregressive request. max_tokens is always set if the prompt's length is
        known, that is, without media."""
        if prepared.reply is not None:
            check_room(prepared, self.traits.max_model_len)
            return SamplingParams(output_kind=RequestOutputKind.DELTA, temperature=0.0, max_tokens=1, detokenize=False)
        token_ids = prepared.prompt.get("prompt_token_ids")
        # The engine expands placeholders of media, so the prompt's length is not known here.
        has_media = bool(prepared.prompt.get("multi_modal_data"))
        prompt_len = None if token_ids is None or has_media else len(token_ids)
        if prepared.prompt_embeds is not None:
            prompt_len = prepared.prompt_embeds.shape[0]
        return lower_sampling(
            request.sampling,
            generation_defaults=self.generation_defaults,
            max_model_len=self.traits.max_model_len,
            prompt_len=prompt_len,
            writes_text=self.component.facts.writes_text,
            stop_token_ids=prepared.stop_token_ids,
            further=_further(request, prepared),
        )

    def lower(
        self, request: StageRequest, prepared: EngineInput, params: Params, *, streamed: bool = False
    ) -> tuple[dict[str, Any], Params]:
        """Returns vLLM's prompt and parameters. Raises as OmniEngineCoreRequest.lower does."""
        lowered = OmniEngineCoreRequest(
            request_id=request.request_id,
            input=prepared,
            params=params,
            want_rows=request.want_tensors and self.captures_rows,
            cache_salt=request.cache_salt,
        )
        return lowered.lower(dataclasses.replace(self.traits, stream_fed=streamed))

    def lower_part(self, request: StageRequest, part: PlannedPart, params: SamplingParams) -> CorePart:
        """Returns one part of a request as vLLM's prompt and parameters. `params` are the sampling parameters of the
        whole request. Raises as OmniEngineCoreRequest.lower does."""
        own = params.clone()
        own.max_tokens = part.max_tokens
        prompt, lowered = self.lower(request, part.input, own, streamed=True)
        return CorePart(prompt, lowered, part.last)


def _further(request: StageRequest, prepared: EngineInput) -> dict[str, Any]:
    """Returns `prepared.sampling` and the requested form of the text. The form is not added if a text parser has
    already put it into `prepared.sampling`."""
    structured = request.source.structured if isinstance(request.source, UserPrompt) else None
    if structured is None or "structured_outputs" in prepared.sampling:
        return dict(prepared.sampling)
    return {**prepared.sampling, **structured_sampling(structured)}
