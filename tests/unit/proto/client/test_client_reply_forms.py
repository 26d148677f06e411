"""Arguments for the form of a reply: a given reply as text or token ids, tools, and structured output."""

from __future__ import annotations

from typing import Any

import pytest

from omni_proto.client import ArgumentError, CallTool, StructuredOutput, Tool, ToolCall, assistant, tool_result, user
from omni_proto.stage.v1 import prompt_pb2
from support.peers.client_requests import prepare, sent


def test_a_reply_is_text_or_token_ids() -> None:
    assert sent(text="x", reply="Hello.")[0].start.reply.text == "Hello."
    assert list(sent(raw_text="x", reply=[3, 4])[0].start.reply.token_ids.ids) == [3, 4]
    assert sent(text="x", reply="")[0].start.HasField("reply")
    assert not sent(text="x")[0].start.HasField("reply")


def test_tools_travel_with_the_chat() -> None:
    weather = Tool("weather", "Looks.", {"type": "object"})
    start = sent(text="Sunny?", tools=[weather], tool_choice="required")[0].start
    assert [message.role for message in start.chat.messages] == ["user"]
    assert start.chat.tools[0] == prompt_pb2.Tool(name="weather", description="Looks.", parameters='{"type": "object"}')
    assert start.chat.tool_choice.mode == prompt_pb2.TOOL_MODE_REQUIRED
    named = sent(text="Sunny?", tools=[weather], tool_choice=CallTool("weather"))[0].start
    assert named.chat.tool_choice.function == "weather"
    assert not sent(text="Sunny?", tools=[weather])[0].start.chat.HasField("tool_choice")


def test_tool_calls_and_results_are_messages() -> None:
    call = ToolCall("c1", "weather", '{"city": "Rome"}')
    chat = [user("Sunny?"), assistant(tool_calls=[call]), tool_result("c1", "yes")]
    messages = sent(chat=chat)[0].start.chat.messages
    assert messages[1].tool_calls[0] == prompt_pb2.ToolCall(id="c1", name="weather", arguments='{"city": "Rome"}')
    assert (messages[2].role, messages[2].tool_call_id, messages[2].parts[0].text) == ("tool", "c1", "yes")


def test_structured_output_has_one_form() -> None:
    forms = [
        StructuredOutput(json_schema={"type": "object"}),
        StructuredOutput(json_object=True),
        StructuredOutput(regex="a+"),
        StructuredOutput(choice=["yes", "no"]),
        StructuredOutput(grammar="root ::= x"),
    ]
    sent_forms = [sent(text="x", structured_output=form)[0].start.structured_output for form in forms]
    assert [form.WhichOneof("form") for form in sent_forms] == [
        "json_schema",
        "json_object",
        "regex",
        "choice",
        "grammar",
    ]
    assert sent_forms[0].json_schema == '{"type": "object"}'
    assert list(sent_forms[3].choice.texts) == ["yes", "no"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"raw_text": "x", "tools": [Tool("a")]}, "need the chat template"),
        ({"text": "x", "tools": ["a"]}, r"tools\[0\] must be a Tool"),
        ({"text": "x", "tools": [Tool("a", parameters={"x": {1}})]}, r"tools\[0\].parameters must be a value that"),
        ({"text": "x", "tools": [Tool("a")], "tool_choice": "maybe"}, "tool_choice must be"),
        ({"text": "x", "reply": [-1]}, "reply must be"),
        ({"text": "x", "structured_output": StructuredOutput(choice="yes")}, "must be a list"),
    ],
)
def test_wrong_reply_forms_are_argument_errors(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(ArgumentError, match=says):
        prepare(**arguments)


def test_two_forms_are_one_too_many() -> None:
    with pytest.raises(ArgumentError, match="exactly one of"):
        StructuredOutput(regex="a", json_object=True)
