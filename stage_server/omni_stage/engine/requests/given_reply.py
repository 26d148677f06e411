"""A reply that the caller gives. The engine reads it with the prompt, in one prefill. The stage then publishes the
reply as if the engine had sampled it. Pure.

A sampled reply of n tokens has rows for the prompt and for its first n - 1 tokens. Its last token ends the text: the
model samples it, but never gets it as input. A given reply has no such token. So one prefill of the prompt and the
given reply gives exactly the rows of a sampled reply with the same text. The token that the engine samples after the
prefill is discarded.
"""

from __future__ import annotations

from dataclasses import replace

from omni_stage.errors import ModelExecutionError, PromptTooLongError
from omni_stage.exchange import ReplyTokens
from omni_stage.models.component import EngineInput, EngineStep, FinishReason


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
