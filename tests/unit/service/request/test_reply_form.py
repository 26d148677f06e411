"""A given reply, tools and structured output in Start: how they are read, and which field each refusal names."""

from __future__ import annotations

import json
from typing import Any

import pytest

from omni_proto.stage.v1 import stage_service_pb2 as pb
from omni_proto.stage_config import Limits, StageConfig
from omni_proto.tensors import TEXT_SCHEMA
from omni_stage.errors import InvalidRequestError, OmniStageError, PromptTooLongError, RequestTooLargeError
from omni_stage.exchange import CalledTool, GivenReply, OfferedTool, StructuredText, ToolMode, Tools
from omni_stage.models.component import UserPrompt
from omni_stage.service.request.planning.plan import RequestPlan, plan_request
from omni_stage.service.request.planning.prompt import build_prompt
from omni_stage.service.request.planning.reply_form import MAX_FORM_BYTES, MAX_JSON_DEPTH, MAX_TOOLS, _read_arguments
from support.stages.scripted_component import ScriptedComponent
from support.tables import each_row

TOO_MANY_CHARS = Limits().max_prompt_chars + 1

SPEECH = {
    "stage": "talker",
    "target": "localhost:1",
    "component": "test/stage",
    "stages": ["talker"],
    "outputs": ["Audio"],
}
WEATHER = {"name": "weather", "description": "Looks.", "parameters": '{"type": "object"}'}
ASK = {"messages": [{"role": "user", "parts": [{"text": "hi"}]}]}


def config(**changes: Any) -> StageConfig:
    fields = {
        "pipeline": "p",
        "stage": "thinker",
        "component": "test/stage",
        "model": {"path": "/none"},
        "outputs": ["Text"],
        "engineArgs": {"toolCallParser": "hermes", "structuredOutput": "All"},
        "limits": {"maxPromptChars": 200},
    }
    return StageConfig.model_validate({**fields, **changes})


def plan(start: dict[str, Any], *, able: bool = True, **changes: Any) -> RequestPlan:
    component = ScriptedComponent(takes_reply=able, structures_text=able, takes_tools=able)
    return plan_request(pb.Start(**start), config(**changes), component, 64)


def prompt(start: dict[str, Any], **changes: Any) -> UserPrompt:
    planned = plan(start, **changes).prompt
    assert planned is not None
    return build_prompt(planned)


def properties(count: int) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(count)}}


def nested(schema: dict[str, Any]) -> str:
    return json.dumps({"anyOf": [{"type": "null"}, schema]})


def tools(*items: Any, **choice: Any) -> dict[str, Any]:
    chat: dict[str, Any] = {**ASK, "tools": list(items)}
    return {"chat": {**chat, "tool_choice": choice} if choice else chat}


def test_reply_is_part_of_the_prompt_whatever_its_input() -> None:
    for source in ({"text": "x"}, {"chat": ASK}, {"token_ids": {"ids": [1]}}):
        assert prompt({**source, "reply": {"text": "Hello."}}).reply == GivenReply(text="Hello.")
    assert prompt({"text": "x", "reply": {"token_ids": {"ids": [3, 4]}}}).reply == GivenReply(token_ids=(3, 4))


def test_template_arguments_are_part_of_the_prompt() -> None:
    chat = {**ASK, "template_arguments": '{"enable_thinking": false}'}
    assert prompt({"chat": chat}).template_arguments == {"enable_thinking": False}
    assert prompt({"chat": ASK}).template_arguments == {}


@pytest.mark.parametrize(
    ("text", "able"), [("[1]", True), ("{", True), (r'{"a": "\ud800"}', True), ('{"a": 1}', False)]
)
def test_wrong_template_arguments_name_their_field(text: str, able: bool) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        plan({"chat": {**ASK, "template_arguments": text}}, able=able)
    assert refused.value.details.field == "start.chat.template_arguments"


def test_half_a_surrogate_pair_is_found_behind_its_escape() -> None:
    """No tokenizer takes it. The model may have written arguments with one, which a refusal would repeat for ever."""
    called = _read_arguments(r'{"a": "\ud83d"}', "field"), _read_arguments(r'{"a": "\ud83d\ude00"}', "field")
    assert called == ({}, {"a": "\N{GRINNING FACE}"})
    with pytest.raises(InvalidRequestError, match="surrogate"):
        plan({"chat": {**ASK, "tools": [{**WEATHER, "parameters": r'{"description": "\ud800"}'}]}}, able=True)


def test_the_limit_of_template_arguments_is_in_bytes() -> None:
    """A Chinese character takes three bytes."""
    text = json.dumps({"name": "好" * (MAX_FORM_BYTES // 3)}, ensure_ascii=False)
    assert len(text) < MAX_FORM_BYTES
    with pytest.raises(RequestTooLargeError, match=f"at most {MAX_FORM_BYTES}"):
        plan({"chat": {**ASK, "template_arguments": text}}, able=True)


def test_reply_bounds_the_rows_whatever_would_be_sampled() -> None:
    """A given reply sets max_tokens and the number of output rows."""
    given = plan({"text": "x", "reply": {"token_ids": {"ids": [1] * 20}}}, downstream=[SPEECH])
    assert given.sampling.max_tokens == 20
    assert given.output_rows == 9 + 20
    assert plan({"text": "x", "reply": {"text": "é" * 10}}).sampling.max_tokens == 20


@pytest.mark.parametrize(
    ("form", "read"),
    [
        ({"json_schema": '{"type": "object"}'}, StructuredText(json_schema='{"type": "object"}')),
        ({"json_schema": nested(properties(256))}, StructuredText(json_schema=nested(properties(256)))),
        ({"json_object": True}, StructuredText(json_object=True)),
        ({"regex": "a+"}, StructuredText(regex="a+")),
        ({"choice": {"texts": ["yes", "no"]}}, StructuredText(choice=("yes", "no"))),
        ({"grammar": 'root ::= "a"'}, StructuredText(grammar='root ::= "a"')),
    ],
)
def test_structured_output_is_read(form: dict[str, Any], read: StructuredText) -> None:
    assert prompt({"text": "x", "structured_output": form}).structured == read


def test_tools_are_read_with_their_choice() -> None:
    weather = OfferedTool("weather", "Looks.", {"type": "object"})
    assert prompt(tools(WEATHER)).tools == Tools((weather,))
    assert prompt(tools(WEATHER, mode="TOOL_MODE_NONE")).tools == Tools((weather,), ToolMode.NONE)
    assert prompt(tools(WEATHER, mode="TOOL_MODE_REQUIRED")).tools == Tools((weather,), ToolMode.REQUIRED)
    assert prompt(tools(WEATHER, function="weather")).tools == Tools((weather,), ToolMode.REQUIRED, "weather")
    bare = prompt(tools({"name": "now"})).tools
    assert bare == Tools((OfferedTool("now", "", {"type": "object", "properties": {}}),))


def test_tool_messages_of_a_conversation_are_read() -> None:
    call = {"id": "c1", "name": "weather", "arguments": '{"city": "Rome"}'}
    messages = [
        *ASK["messages"],
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "parts": [{"text": "sunny"}]},
    ]
    read = prompt({"chat": {"messages": messages, "tools": [WEATHER]}}).messages
    assert read is not None
    assert read[1].tool_calls == (CalledTool("c1", "weather", {"city": "Rome"}),)
    assert (read[2].role, read[2].tool_call_id) == ("tool", "c1")


@each_row("name", ["", "no such tool", "x" * 100, "<|im_end|>"])
def test_calls_of_a_conversation_are_as_the_model_wrote_them(name: str) -> None:
    """A refusal would end the conversation, because each later request repeats the call."""
    called = {"role": "assistant", "tool_calls": [{"name": name}]}
    messages = [*ASK["messages"], called, {"role": "tool", "parts": [{"text": "unknown tool"}]}]
    read = prompt({"chat": {"messages": messages, "tools": [WEATHER]}}).messages
    assert read is not None
    assert read[1].tool_calls == (CalledTool("", name, {}),)
    assert (read[2].role, read[2].tool_call_id) == ("tool", "")


def test_a_published_text_is_spoken_without_the_calls_beside_it() -> None:
    """What a voice reads is the text that the client gets. A schema would be read out, so it is still refused."""
    voice = {**SPEECH, "stage": "voice", "stages": ["voice"]}
    component = ScriptedComponent(structures_text=True, takes_tools=True, output_schema=TEXT_SCHEMA)
    planned = plan_request(pb.Start(**tools(WEATHER)), config(downstream=[voice]), component, 64)
    assert planned.prompt is not None
    assert planned.prompt.tools is not None
    asked: dict[str, Any] = {"text": "x", "structured_output": {"json_object": True}}
    with pytest.raises(InvalidRequestError, match="read out") as refused:
        plan_request(pb.Start(**asked), config(downstream=[voice]), component, 64)
    assert refused.value.details.field == "start.structured_output"


@pytest.mark.parametrize("able", [True, False])
@pytest.mark.parametrize(
    ("start", "field"),
    [
        (tools(WEATHER), "start.chat.tools"),
        ({"chat": ASK, "structured_output": {"json_object": True}}, "start.structured_output"),
    ],
)
def test_the_entry_passes_no_form_on_to_the_stage_that_answers(start: dict[str, Any], field: str, able: bool) -> None:
    """Whether it only hears or writes text of its own: that text is not the answer."""
    component = ScriptedComponent(structures_text=able, takes_tools=able, output_schema=TEXT_SCHEMA)
    below = {**SPEECH, "stage": "llm", "stages": ["llm", "voice"], "outputs": ["Text", "Audio"]}
    cascade = config(stage="asr", downstream=[below], answeringStage="llm")
    with pytest.raises(InvalidRequestError, match="for the stage that answers, 'llm', and the entry stage 'asr'") as no:
        plan_request(pb.Start(**start), cascade, component, 64)
    assert no.value.details.field == field


@pytest.mark.parametrize("arguments", ["", '{"city": "Ro', "[1]", '{"wind": NaN}'])
def test_a_malformed_call_of_the_model_does_not_end_the_conversation(arguments: str) -> None:
    """The client sends back what the model wrote, which may have been cut at max_tokens."""
    call = {"id": "c1", "name": "weather", "arguments": arguments}
    read = prompt({"chat": {"messages": [*ASK["messages"], {"role": "assistant", "tool_calls": [call]}]}}).messages
    assert read is not None
    assert read[1].tool_calls == (CalledTool("c1", "weather", {}),)


DEEP = "[" * MAX_JSON_DEPTH + "]" * MAX_JSON_DEPTH
REFUSED: list[Any] = [
    # Given replies.
    ({"text": "x", "reply": {}}, InvalidRequestError, "start.reply.token_ids.ids", {}),
    ({"text": "x", "reply": {"text": ""}}, InvalidRequestError, "start.reply.text", {}),
    ({"text": "x", "reply": {"text": "y" * 201}}, RequestTooLargeError, "start.reply.text", {}),
    ({"text": "x", "reply": {"token_ids": {}}}, InvalidRequestError, "start.reply.token_ids.ids", {}),
    ({"text": "x", "reply": {"token_ids": {"ids": [1] * 64}}}, PromptTooLongError, "start.reply.token_ids.ids", {}),
    ({"text": "x", "reply": {"token_ids": {"ids": [2**31]}}}, InvalidRequestError, "start.reply.token_ids.ids", {}),
    ({"text": "x", "reply": {"text": "y"}}, InvalidRequestError, "start.reply", {"able": False}),
    (
        {"text": "x", "reply": {"text": "y"}, "sampling": {"thinker": {"temperature": 0.5}}},
        InvalidRequestError,
        "start.sampling[thinker]",
        {},
    ),
    (
        {"text": "x", "reply": {"text": "y"}, "structured_output": {"json_object": True}},
        InvalidRequestError,
        "start.structured_output",
        {},
    ),
    ({**tools(WEATHER), "reply": {"text": "y"}}, InvalidRequestError, "start.chat.tools", {}),
    ({"prompt_embeds": {}, "reply": {"text": "y"}}, InvalidRequestError, "start.prompt_embeds", {}),
    # Structured output.
    ({"text": "x", "structured_output": {}}, InvalidRequestError, "start.structured_output", {}),
    (
        {"text": "x", "structured_output": {"json_object": True}},
        InvalidRequestError,
        "start.structured_output",
        {"able": False},
    ),
    (
        {"text": "x", "structured_output": {"json_object": True}},
        InvalidRequestError,
        "start.structured_output",
        {"downstream": [SPEECH]},
    ),
    *(
        ({"text": "x", "structured_output": form}, error, f"start.structured_output.{field}", {})
        for form, error, field in [
            ({"json_schema": "{"}, InvalidRequestError, "json_schema"),
            ({"json_schema": "[]"}, InvalidRequestError, "json_schema"),
            ({"json_schema": '{"const": NaN}'}, InvalidRequestError, "json_schema"),
            ({"json_schema": '{"x": ' + DEEP + "}"}, InvalidRequestError, "json_schema"),
            ({"json_schema": "[" * 50_000}, InvalidRequestError, "json_schema"),
            ({"json_schema": nested(properties(257))}, InvalidRequestError, "json_schema"),
            ({"json_schema": nested(properties(65) | {"minProperties": 1})}, InvalidRequestError, "json_schema"),
            ({"json_schema": json.dumps("y" * MAX_FORM_BYTES)}, RequestTooLargeError, "json_schema"),
            ({"json_object": False}, InvalidRequestError, "json_object"),
            ({"regex": ""}, InvalidRequestError, "regex"),
            ({"regex": "a" * MAX_FORM_BYTES}, RequestTooLargeError, "regex"),
            ({"choice": {}}, InvalidRequestError, "choice.texts"),
            ({"choice": {"texts": ["a", ""]}}, InvalidRequestError, "choice.texts"),
            ({"grammar": ""}, InvalidRequestError, "grammar"),
        ]
    ),
    # Tools.
    (tools(WEATHER), InvalidRequestError, "start.chat.tools", {"able": False}),
    (tools(WEATHER), InvalidRequestError, "start.chat.tools", {"engineArgs": {}}),
    (tools(WEATHER), InvalidRequestError, "start.chat.tools", {"downstream": [SPEECH]}),
    (tools(mode="TOOL_MODE_AUTO"), InvalidRequestError, "start.chat.tool_choice", {}),
    (tools(WEATHER, function="time"), InvalidRequestError, "start.chat.tool_choice", {}),
    (tools(WEATHER, mode=9), InvalidRequestError, "start.chat.tool_choice.mode", {}),
    (tools(WEATHER, WEATHER), InvalidRequestError, "start.chat.tools", {}),
    (tools(*[WEATHER] * (MAX_TOOLS + 1)), InvalidRequestError, "start.chat.tools", {}),
    (tools({"name": "x", "description": "y" * MAX_FORM_BYTES}), RequestTooLargeError, "start.chat.tools", {}),
    (tools({"name": "no blanks"}), InvalidRequestError, "start.chat.tools[0].name", {}),
    (tools({"name": "x" * 65}), InvalidRequestError, "start.chat.tools[0].name", {}),
    (tools({"name": "x", "parameters": "[]"}), InvalidRequestError, "start.chat.tools[0].parameters", {}),
    # Messages.
    *(
        (
            {"chat": {"messages": [*ASK["messages"], message]}},
            InvalidRequestError,
            f"start.chat.messages[1].{field}",
            {},
        )
        for message, field in [
            ({"role": "user", "tool_calls": [{"name": "x"}]}, "tool_calls"),
            ({"role": "user", "parts": [{"text": "x"}], "tool_call_id": "c"}, "tool_call_id"),
            ({"role": "tool", "tool_call_id": "c", "parts": [{"image": {"data": b"x"}}]}, "parts"),
            ({"role": "tool", "tool_call_id": "c"}, "parts"),
        ]
    ),
    *(
        (
            {"chat": {"messages": [{"role": "assistant", "tool_calls": [{"name": "x", "arguments": deep}]}]}},
            InvalidRequestError,
            "start.chat.messages[0].tool_calls[0].arguments",
            {"limits": {"maxPromptChars": 20_000}},
        )
        for deep in (f'{{"x": {DEEP}}}', "[" * 10_000)
    ),
    # The characters are counted before they are parsed: this text is not JSON, but the error is about its length.
    *(
        ({"chat": {"messages": [*ASK["messages"], message]}}, RequestTooLargeError, "start.chat", {})
        for message in [
            {"role": "assistant", "tool_calls": [{"name": "x", "arguments": "[" * TOO_MANY_CHARS}]},
            {"role": "assistant", "tool_calls": [{"name": "x", "id": "c" * TOO_MANY_CHARS}]},
            {"role": "tool", "tool_call_id": "c" * TOO_MANY_CHARS, "parts": [{"text": "x"}]},
        ]
    ),
    ({"text": "x", "modalities": [1] * 17}, InvalidRequestError, "start.modalities", {}),
]


@each_row("start, error, field, changes", REFUSED)
def test_refusals_name_their_field(
    start: dict[str, Any], error: type[OmniStageError], field: str, changes: dict[str, Any]
) -> None:
    with pytest.raises(error) as caught:
        plan(start, **changes)
    assert caught.value.details.field == field


def test_refusals_do_not_repeat_what_was_sent() -> None:
    secret = {"name": "CANARY!", "parameters": json.dumps({"CANARY": 1})}
    with pytest.raises(InvalidRequestError) as caught:
        plan(tools(secret))
    assert "CANARY" not in str(caught.value)


@pytest.mark.parametrize(
    ("setting", "refused"),
    [
        ("None", {"json_schema", "json_object", "choice", "regex", "grammar", "tool_choice", "tools"}),
        ("Json", {"regex", "grammar"}),
        (None, {"regex", "grammar"}),
        ("All", set()),
    ],
)
def test_the_stage_says_which_forms_requests_may_use(setting: str | None, refused: set[str]) -> None:
    forms = {
        "json_schema": '{"type": "object"}',
        "json_object": True,
        "choice": {"texts": ["a"]},
        "regex": "a",
        "grammar": 'root ::= "a"',
    }
    starts = {name: {"text": "x", "structured_output": {name: form}} for name, form in forms.items()}
    starts["tool_choice"] = tools(WEATHER, mode=3)
    starts["tools"] = tools({**WEATHER, "strict": True})
    args = {"engineArgs": {"toolCallParser": "hermes", "structuredOutput": setting}}
    plan(tools(WEATHER), **args)
    for name, start in starts.items():
        if name not in refused:
            plan(start, **args)
            continue
        with pytest.raises(InvalidRequestError, match=r"engineArgs\.structuredOutput is") as error:
            plan(start, **args)
        assert error.value.details.field in (f"start.structured_output.{name}", f"start.chat.{name}")


def test_schemas_of_strict_tools_are_checked_and_others_not() -> None:
    odd = {**WEATHER, "parameters": '{"type": "object", "properties": {"a": {"not": {}}}}'}
    plan(tools(odd))
    with pytest.raises(InvalidRequestError, match='"not"') as refused:
        plan(tools({**odd, "strict": True}))
    assert refused.value.details.field == "start.chat.tools[0].parameters"
