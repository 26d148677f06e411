"""Chat answers: their finish_reason in OpenAI's terms, and their message as a message of the next request."""

from __future__ import annotations

import pytest

from omni_gateway.openai.chat_events import ChatAnswer, read_usage
from omni_gateway.openai.chat_messages import AssistantMessage
from omni_proto.client import StageOutcome, Summary, ToolCall, ToolCallDelta, Usage


@pytest.mark.parametrize(
    ("named_tool", "calls", "reason", "expected"),
    [
        (False, True, "stop", "tool_calls"),
        (True, True, "stop", "stop"),
        (False, True, "length", "length"),
        (False, False, "stop", "stop"),
    ],
)
def test_finish_reason(named_tool: bool, calls: bool, reason: str, expected: str) -> None:
    def answer() -> ChatAnswer:
        return ChatAnswer(id="chatcmpl-1", model="m", created=1, finish_reason=reason, named_tool=named_tool)

    streamed = answer()
    if calls:
        streamed.tool_call(ToolCallDelta(stage="llm", index=0, id="c", name="f", arguments="{}"))
    assert streamed.last()["choices"][0]["finish_reason"] == expected
    made = [ToolCall(id="c", name="f", arguments="{}")] if calls else []
    whole = answer().whole("", None, {}, calls=made)
    assert whole["choices"][0]["finish_reason"] == expected


@pytest.mark.parametrize(
    ("thinker", "talker", "expected"),
    [
        ("stop", "stop", "stop"),
        ("length", "stop", "length"),
        ("stop", "length", "length"),
        ("length", "length", "length"),
        ("stop", "empty_input", "stop"),
        ("stop", "unspecified", "stop"),
    ],
)
@pytest.mark.parametrize("audio", ["diffusion_done", "stop"])
def test_an_answer_is_cut_if_any_stage_was(thinker: str, talker: str, expected: str, audio: str) -> None:
    reasons = {"thinker": thinker, "talker": talker, "token2wav": audio}
    outcomes = tuple(StageOutcome(stage, reason, Usage(), 0) for stage, reason in reasons.items())
    answer = ChatAnswer(id="chatcmpl-1", model="m", created=1)
    answer.end(Summary("thinker", "r", outcomes, 1).cut_stages)
    assert answer.last()["choices"][0]["finish_reason"] == expected


def test_usage_of_several_requests_is_their_sum() -> None:
    outcomes = (StageOutcome("thinker", "stop", Usage(3, 5), 0), StageOutcome("talker", "stop", Usage(8, 7), 0))
    summary = Summary("thinker", "r", outcomes, 1)
    assert read_usage(summary, summary)["total_tokens"] == 2 * read_usage(summary)["total_tokens"] == 30


def test_the_message_of_an_answer_is_one_of_the_next_request() -> None:
    """Clients append the message unchanged, with its reasoning; some name this field reasoning_content."""
    made = [ToolCall(id="c", name="f", arguments="{}")]
    answer = ChatAnswer(id="chatcmpl-1", model="m", created=1).whole("", None, {}, calls=made, reasoning="Hm.")
    message = answer["choices"][0]["message"]
    assert AssistantMessage.model_validate(message).reasoning == "Hm."
    AssistantMessage.model_validate({**message, "reasoning_content": "Hm."})
    heard = ChatAnswer(id="chatcmpl-1", model="m", created=1).whole("Paris.", None, {}, heard="Where?")
    AssistantMessage.model_validate(heard["choices"][0]["message"])


def test_usage_claims_no_number_of_reasoning_tokens() -> None:
    """Stages do not count reasoning tokens, and cost trackers would take a 0 for the real number."""
    outcomes = (
        StageOutcome("thinker", "stop", Usage(prompt_tokens=3, completion_tokens=5), 0),
        StageOutcome("talker", "stop", Usage(prompt_tokens=8, completion_tokens=7, codec_tokens=7), 0),
    )
    assert read_usage(Summary("thinker", "r", outcomes, 1)) == {
        "prompt_tokens": 3,
        "completion_tokens": 12,
        "total_tokens": 15,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"audio_tokens": 7, "text_tokens": 5},
    }


def test_tokens_are_of_text_unless_they_are_a_codec_s() -> None:
    """Of a spoken dialogue: a stage that hears, one that answers, and one that speaks without tokens."""
    outcomes = (
        StageOutcome("asr", "stop", Usage(prompt_tokens=4, completion_tokens=6, cached_tokens=3), 0),
        StageOutcome("llm", "stop", Usage(prompt_tokens=20, completion_tokens=8, cached_tokens=16), 0),
        StageOutcome("voice", "diffusion_done", Usage(prompt_tokens=31, audio_samples=2400), 0),
    )
    assert read_usage(Summary("asr", "r", outcomes, 1), answering="llm") == {
        "prompt_tokens": 20,
        "completion_tokens": 14,
        "total_tokens": 34,
        "prompt_tokens_details": {"cached_tokens": 16},
        "completion_tokens_details": {"text_tokens": 14},
    }
