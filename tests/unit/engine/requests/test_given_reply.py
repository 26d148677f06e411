"""A reply given by the client becomes the same engine step as if the model had sampled it. No engine runs."""

from __future__ import annotations

import pytest
import torch

from omni_stage.engine.requests.lowering import as_if_sampled, check_room
from omni_stage.errors import ModelExecutionError, PromptTooLongError
from omni_stage.exchange import ReplyTokens
from omni_stage.models.component import EngineInput, EngineStep, FinishReason

REPLY = ReplyTokens((8, 9), "hi")
TENSORS = {
    "rows": torch.arange(5.0)[:, None],
    "mrope_positions": torch.arange(5)[:, None].repeat(1, 3),
    "mrope_delta": torch.zeros(1, dtype=torch.int64),
}
STEP = EngineStep(
    token_ids=[3],
    text="!",
    prompt_token_ids=[1, 2, 5, 8, 9],
    tensors=TENSORS,
    finish_reason=FinishReason.LENGTH,
    stop_reason="3",
    scheduled_ns=11,
)


def test_the_last_tokens_of_the_prompt_are_the_reply() -> None:
    step = as_if_sampled(STEP, REPLY)
    assert (step.prompt_token_ids, step.token_ids, step.text) == ([1, 2, 5], [8, 9], "hi")
    assert (step.finish_reason, step.stop_reason, step.scheduled_ns) == (FinishReason.STOP, "", 11)
    assert torch.equal(step.tensors["rows"], TENSORS["rows"])
    assert torch.equal(step.tensors["mrope_positions"], TENSORS["mrope_positions"][:3])
    assert torch.equal(step.tensors["mrope_delta"], TENSORS["mrope_delta"])
    assert STEP.prompt_token_ids == [1, 2, 5, 8, 9], "the engine's own step is unchanged"


def test_stages_that_capture_nothing_have_no_tensors() -> None:
    plain = EngineStep(token_ids=[3], prompt_token_ids=[1, 8, 9], finish_reason=FinishReason.STOP)
    assert as_if_sampled(plain, REPLY).tensors == {}


@pytest.mark.parametrize(
    "step",
    [EngineStep(token_ids=[3], prompt_token_ids=[1, 8, 9]), EngineStep(token_ids=[3], finish_reason=FinishReason.STOP)],
)
def test_a_second_step_is_an_error(step: EngineStep) -> None:
    """A given reply takes exactly one step, which has the prompt and a finish reason."""
    with pytest.raises(ModelExecutionError):
        as_if_sampled(step, REPLY)


def test_prompt_and_reply_fit_together_or_are_refused() -> None:
    def given(tokens: int) -> EngineInput:
        return EngineInput(prompt={"prompt_token_ids": [1] * tokens}, reply=REPLY)

    check_room(given(63), 64)
    check_room(EngineInput(prompt={"prompt_token_ids": [1] * 64}), 64)
    with pytest.raises(PromptTooLongError, match="at most 63 fit") as caught:
        check_room(given(64), 64)
    assert caught.value.details.field == "start.reply"
