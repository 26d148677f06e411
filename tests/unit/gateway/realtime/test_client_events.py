"""Every client event and field that OpenAI publishes, and what is wrong with them: what the client is sent.

The fields and their values come from the installed openai package, whose types are generated from OpenAI's description.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal, Required, Union, get_args, get_origin

import pytest
from openai.types.realtime.conversation_item_param import ConversationItemParam
from openai.types.realtime.realtime_client_event_param import RealtimeClientEventParam
from openai.types.realtime.realtime_response_create_params_param import RealtimeResponseCreateParamsParam
from openai.types.realtime.realtime_session_create_request_param import RealtimeSessionCreateRequestParam
from typing_extensions import get_type_hints, is_typeddict

from omni_gateway.realtime.state.client_events import TYPES
from omni_gateway.realtime.state.response import Ended, Said, Spoke
from support.peers.held_session import FACTS, SECOND, TOOL, USAGE, Held

VALUES: dict[str, Any] = {
    "audio": base64.b64encode(bytes(96)).decode(),
    "image_url": "data:image/png;base64,AAAA",
    "call_id": "call0",
    "conversation": "none",
    "arguments": "{}",
    "metadata": {"k": "v"},
    "threshold": 0.5,
    "retention_ratio": 0.5,
    "tool_choice": "required",
    "voice": "alloy",
    "language": "en",
    "silence_duration_ms": 600,
}
"""Of fields whose type says less than their meaning."""
MCP = ("mcp_approval_response", "mcp_list_tools", "mcp_call", "mcp_approval_request")
"""Items that only OpenAI's own models make."""


def samples(hint: Any, name: str = "") -> Iterator[Any]:
    """Yields values of a type: each choice, and objects with each single field beside those that are required."""
    origin = get_origin(hint)
    if name in VALUES and not is_typeddict(hint):
        yield VALUES[name]
    elif is_typeddict(hint):
        fields = {key: one for key, one in get_type_hints(hint, include_extras=True).items() if key != "event_id"}
        plain = {key: get_args(one)[0] if get_origin(one) is Required else one for key, one in fields.items()}
        needed = {key: next(samples(plain[key], key)) for key, one in fields.items() if get_origin(one) is Required}
        needed |= {"name": "f"} if "parameters" in plain else {}  # though the description does not say so
        for key, one in plain.items():
            for value in samples(one, key):
                yield {**needed, key: value}
    elif origin is Literal:
        yield from get_args(hint)
    elif origin is Union:
        for one in get_args(hint):
            if one is not type(None):
                yield from samples(one, name)
    elif origin in (list, tuple) or (origin is not None and get_args(hint) and "Iterable" in str(origin)):
        if name != "output_modalities":
            yield []
        for value in samples(get_args(hint)[0]):
            yield [value]
    else:
        yield {str: "x", int: 700, float: 1.0, bool: True}.get(hint, {})


def test_every_event_is_known() -> None:
    known = {get_args(get_args(get_type_hints(one, include_extras=True)["type"])[0])[0] for one in events()}
    assert known - set(TYPES) == {"output_audio_buffer.clear"}, "WebRTC only, as OpenAI's description says"
    assert set(TYPES) <= known


def events() -> tuple[Any, ...]:
    return get_args(RealtimeClientEventParam)


def test_every_field_of_a_session_may_be_sent_and_be_null() -> None:
    sent = [*samples(RealtimeSessionCreateRequestParam)]
    assert len(sent) > 80
    for session in sent:
        for wishes in (session, {name: None if name != "type" else "realtime" for name in session}):
            held = Held()
            assert held.send("session.update", session=wishes) == ["session.updated"], (wishes, held.sent[-1])


def has_types(item: dict[str, Any]) -> bool:
    """Returns whether each part has a type. No field of a part is required in the description."""
    return all("type" in one for one in item.get("content", ()))


def test_every_field_of_a_response_may_be_sent_and_be_null() -> None:
    sent = [*samples(RealtimeResponseCreateParamsParam)]
    assert len(sent) > 50
    for response in sent:
        if any(one["type"] in MCP or not has_types(one) for one in response.get("input", ())):
            continue
        for wishes in (response, dict.fromkeys(response)):
            held = Held()
            held.say("hi")
            if wishes.get("input") is not None:
                wishes = {**wishes, "instructions": "Speak."}  # some items say nothing
            names = held.send("response.create", response=wishes)
            lacks_text = names == ["error"] and held.error["code"] == "missing_required_parameter"
            assert names[0] == "response.created" or (lacks_text and response["input"]), (wishes, held.sent[-1])


def test_every_kind_of_item_may_be_created() -> None:
    sent = [*samples(ConversationItemParam)]
    assert len(sent) > 30
    for item in sent:
        held = Held()
        held.send("conversation.item.create", item={"type": "function_call", "call_id": "call0", "name": "f"})
        names = held.send("conversation.item.create", item=item)
        if item["type"] in MCP:
            assert held.error["param"] == "item.type"
        elif not has_types(item):
            assert names == ["error"]
        else:
            assert names[0] == "conversation.item.added" or held.error["code"] == "missing_required_parameter", item


@pytest.mark.parametrize(
    ("kind", "fields", "code", "param"),
    [
        ("session.update", {}, "missing_required_parameter", "session"),
        ("session.update", {"session": None}, "missing_required_parameter", "session"),
        ("session.update", {"session": []}, "invalid_type", "session"),
        ("session.update", {"session": {"type": "video"}}, "invalid_value", "session.type"),
        ("session.update", {"session": {"instructions": 5}}, "invalid_type", "session.instructions"),
        ("session.update", {"session": {"audio": "loud"}}, "invalid_type", "session.audio"),
        ("session.update", {"session": {"output_modalities": []}}, "invalid_value", "session.output_modalities"),
        ("session.update", {"session": {"output_modalities": "text"}}, "invalid_type", "session.output_modalities"),
        ("session.update", {"session": {"max_output_tokens": "infinite"}}, None, "session.max_output_tokens"),
        ("session.update", {"session": {"truncation": "later"}}, None, "session.truncation"),
        ("session.update", {"session": {"tools": {}}}, "invalid_type", "session.tools"),
        ("session.update", {"session": {"tools": ["f"]}}, "invalid_type", "session.tools[0]"),
        (
            "session.update",
            {"session": {"tools": [{"type": "mcp"}, {"type": "function", "function": {"name": "f"}}]}},
            "missing_required_parameter",
            "session.tools[1].name",
        ),
        ("session.update", {"session": {"tools": [{"name": "two words"}]}}, "invalid_value", "session.tools[0].name"),
        ("session.update", {"session": {"tool_choice": "maybe"}}, "invalid_value", "session.tool_choice"),
        ("session.update", {"session": {"audio": {"output": {"voice": 5}}}}, None, "session.audio.output.voice"),
        (
            "session.update",
            {"session": {"audio": {"input": {"format": {"type": "audio/pcmu", "rate": 24_000}}}}},
            "invalid_value",
            "session.audio.input.format.rate",
        ),
        (
            "session.update",
            {"session": {"audio": {"output": {"format": {"type": "audio/opus"}}}}},
            "invalid_value",
            "session.audio.output.format.type",
        ),
        ("input_audio_buffer.append", {}, "missing_required_parameter", "audio"),
        ("input_audio_buffer.append", {"audio": 5}, "invalid_type", "audio"),
        ("input_audio_buffer.append", {"audio": "!!"}, "invalid_media", "audio"),
        ("input_audio_buffer.commit", {}, "input_audio_buffer_commit_empty", None),
        ("conversation.item.create", {}, "missing_required_parameter", "item"),
        ("conversation.item.create", {"item": "hi"}, "invalid_type", "item"),
        ("conversation.item.create", {"item": {"type": "message"}}, "missing_required_parameter", "item.role"),
        ("conversation.item.create", {"item": {"role": "user"}}, "missing_required_parameter", "item.content"),
        ("conversation.item.create", {"item": {"role": "robot", "content": "hi"}}, "invalid_value", "item.role"),
        (
            "conversation.item.create",
            {"item": {"role": "user", "content": [{"type": "input_text"}]}},
            "missing_required_parameter",
            "item.content[0].text",
        ),
        (
            "conversation.item.create",
            {"item": {"role": "system", "content": [{"type": "input_audio", "audio": "AAAA"}]}},
            "invalid_value",
            "item.content[0]",
        ),
        (
            "conversation.item.create",
            {"item": {"type": "function_call_output", "call_id": "none", "output": "x"}},
            "invalid_tool_call_id",
            "item.call_id",
        ),
        (
            "conversation.item.create",
            {"item": {"role": "user", "content": "hi"}, "previous_item_id": "none"},
            "item_create_invalid_previous_item_id",
            "previous_item_id",
        ),
        ("conversation.item.retrieve", {}, "missing_required_parameter", "item_id"),
        ("conversation.item.delete", {"item_id": 5}, "invalid_type", "item_id"),
        ("conversation.item.truncate", {"item_id": "said"}, "missing_required_parameter", "audio_end_ms"),
        (
            "conversation.item.truncate",
            {"item_id": "said", "content_index": 1, "audio_end_ms": 1},
            "invalid_value",
            "content_index",
        ),
        (
            "conversation.item.truncate",
            {"item_id": "said", "content_index": 0, "audio_end_ms": 1},
            "unsupported_content_type",
            "item_id",
        ),
        ("conversation.item.truncate", {"item_id": "said", "audio_end_ms": -1}, "invalid_value", "audio_end_ms"),
        ("response.create", {"response": []}, "invalid_type", "response"),
        ("response.create", {"response": {"conversation": "other"}}, "invalid_value", "response.conversation"),
        ("response.create", {"response": {"metadata": {"k": 5}}}, "invalid_value", "response.metadata"),
        ("response.create", {"response": {"input": "hi"}}, "invalid_type", "response.input"),
        (
            "response.create",
            {"response": {"input": [{"role": "user", "content": "hi"}, {"type": "item_reference", "id": "none"}]}},
            "item_retrieve_invalid_item_id",
            "response.input[1].id",
        ),
        ("response.create", {"response": {"input": []}}, "invalid_value", "input"),
        ("response.cancel", {"response_id": "none"}, "response_cancel_not_active", None),
        ("output_audio_buffer.clear", {}, "invalid_value", "type"),
    ],
)
def test_what_is_wrong_is_named_and_changes_nothing(
    kind: str, fields: dict[str, Any], code: str | None, param: str | None
) -> None:
    held = Held()
    said = {"id": "said", "type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hi"}]}
    held.send("conversation.item.create", item=said)
    config, items = held.session.config, list(held.session.conversation.items)
    assert held.send(kind, **fields) == ["error"], held.sent[-1]
    assert (held.error["param"], held.error["event_id"]) == (param, "mine")
    assert code in (None, held.error["code"]), held.error
    assert (held.session.config, held.session.conversation.items) == (config, items)


def test_an_event_without_a_type_lacks_it() -> None:
    held = Held()
    assert held.send(None) == ["error"]  # type: ignore[arg-type]
    assert (held.error["code"], held.error["param"]) == ("missing_required_parameter", "type")


def test_null_and_nothing_are_no_errors() -> None:
    held = Held()
    held.update(audio={"input": {"turn_detection": None}})
    assert held.send("input_audio_buffer.append", audio="") == []
    item = {"id": None, "type": None, "role": "user", "content": [{"type": "input_text", "text": ""}], "status": None}
    assert held.send("conversation.item.create", item=item, previous_item_id=None)[0] == "conversation.item.added"
    held.say("hi")
    assert held.send("response.create", response=None)[0] == "response.created"
    assert held.send("response.cancel", response_id=None)[-1] == "response.done"


def test_a_format_replaces_another_with_its_rate() -> None:
    held = Held()
    for given, shown in (
        ({"type": "audio/pcm", "rate": 24_000}, {"type": "audio/pcm", "rate": 24_000}),
        ({"type": "audio/pcmu"}, {"type": "audio/pcmu"}),
        ({"type": "audio/pcma", "rate": 8000}, {"type": "audio/pcma"}),
        ({"type": "audio/pcm"}, {"type": "audio/pcm", "rate": 24_000}),
    ):
        audio = held.update(audio={"input": {"format": given}, "output": {"format": given}})["audio"]
        assert (audio["input"]["format"], audio["output"]["format"]) == (shown, shown)
        held.send("input_audio_buffer.append", audio=SECOND)
        kept = held.session.buffer.milliseconds
        held.update(audio={"input": {"format": shown}})
        assert held.session.buffer.milliseconds == kept, "nothing has changed"


def test_a_choice_of_tools_outlives_the_tools_it_does_not_name() -> None:
    held = Held()
    assert held.update(tool_choice="required")["tool_choice"] == "required"
    assert held.update(tools=[TOOL])["tool_choice"] == "required"
    named = {"type": "function", "name": "weather"}
    assert held.update(tool_choice=named)["tool_choice"] == named
    assert held.update(tool_choice={"type": "mcp", "server_label": "x"})["tool_choice"] == "auto"
    held.update(tool_choice=named)
    assert held.update(tools=[{**TOOL, "name": "time"}])["tool_choice"] == "auto"


def test_a_schema_keeps_its_nulls() -> None:
    tool = {**TOOL, "parameters": {"type": "object", "properties": {"a": {"const": None}}}}
    held = Held()
    assert held.update(tools=[tool])["tools"] == [tool]
    assert held.ask().prompt.body["tools"][0]["function"]["parameters"] == tool["parameters"]


def test_another_pipelines_transcripts_outlast_updates() -> None:
    held = Held()
    held.session.abilities.writers.update({"whisper-1": "asr", "asr": "asr"})  # as learn_writer notes an alias
    for wishes in ({"audio": {"input": {"transcription": {"model": "whisper-1"}}}}, {"instructions": "x"}):
        assert held.update(**wishes)["audio"]["input"]["transcription"] == {"model": "asr"}


def test_a_voice_may_change_after_audio() -> None:
    """OpenAI's models cannot; here each answer is a request of its own."""
    held = Held()
    asked = held.ask()
    for output in (Said("Hello"), Spoke(bytes(480), 10.0)):
        held.take(held.session.answer(asked.response_id, output))
    assert held.update(audio={"output": {"voice": "Ethan"}})["audio"]["output"]["voice"] == "Ethan"
    held.take(held.session.answer(asked.response_id, Ended(USAGE, is_cut=False)))
    assert held.sent[-1]["response"]["audio"]["output"]["voice"] == "Chelsie"
    assert held.ask().prompt.body["audio"]["voice"] == "Ethan"


def test_what_was_cut_does_not_come_back() -> None:
    held = Held()
    asked = held.ask()
    held.take(held.session.answer(asked.response_id, Said("one two three four")))
    for _ in range(20):
        held.take(held.session.answer(asked.response_id, Spoke(bytes(4800), 100.0)))
    held.take(held.session.answer(asked.response_id, Ended(USAGE, is_cut=False)))
    item = held.session.conversation.items[0]
    heard = []
    for end_ms in (9999, 1000, 1500):
        held.send("conversation.item.truncate", item_id=item.id, content_index=0, audio_end_ms=end_ms)
        heard.append((held.sent[-1]["audio_end_ms"], item.content[0].text))
    assert heard == [(2000, "one two three four"), (1000, "one two"), (1000, "one two")]


def test_text_cannot_be_truncated() -> None:
    held = Held()
    held.update(output_modalities=["text"])
    asked = held.ask()
    held.take(held.session.answer(asked.response_id, Said("Hello")))
    held.take(held.session.answer(asked.response_id, Ended(USAGE, is_cut=False)))
    item_id = held.session.conversation.items[0].id
    assert held.send("conversation.item.truncate", item_id=item_id, content_index=0, audio_end_ms=0) == ["error"]


def test_a_model_that_does_not_hear_takes_no_audio() -> None:
    held = Held(replace(FACTS, hears=False))
    part = {"type": "input_audio", "audio": "AAAA"}
    assert held.send("conversation.item.create", item={"role": "user", "content": [part]}) == ["error"]
    assert held.error["param"] == "item.content"


def test_half_a_sample_is_dropped() -> None:
    held = Held()
    part = {"type": "input_audio", "audio": base64.b64encode(bytes(5)).decode()}
    held.send("conversation.item.create", item={"role": "user", "content": [part]})
    assert len(held.session.conversation.items[0].content[0].audio) == 4


def fill(held: Held) -> None:
    """Adds three turns, the first of which is long, and a system message."""
    held.send("conversation.item.create", item={"role": "system", "content": "rules"})
    for word in ("one", "two", "three"):
        held.say(word * (20 if word == "one" else 1))
        if word != "three":
            held.send("conversation.item.create", item={"role": "assistant", "content": f"after {word}"})


def texts(prompt: Any) -> list[str]:
    found = [one["content"] for one in prompt.body["messages"]]
    return [one if isinstance(one, str) else one[0]["text"] for one in found]


def test_a_conversation_that_is_too_long_loses_its_oldest_turns() -> None:
    held = Held()
    fill(held)
    asked = held.ask()
    assert texts(held.session.shorten(asked.response_id)) == ["rules", "two", "after two", "three"]
    assert texts(held.session.shorten(asked.response_id)) == ["rules", "three"]
    assert held.session.shorten(asked.response_id) is None, "the last message stays"
    held.take(held.session.answer(asked.response_id, Said("ok")))
    assert held.session.shorten(asked.response_id) is None, "it is answered"
    held.take(held.session.answer(asked.response_id, Ended(USAGE, is_cut=False)))
    held.say("four")
    asked = held.ask()
    assert texts(asked.prompt) == ["rules", "three", "ok", "four"]
    first = held.session.conversation.items[1]
    assert held.send("conversation.item.retrieve", item_id=first.id) == ["conversation.item.retrieved"]
    held.send("response.cancel")
    given = [{"type": "item_reference", "id": first.id}]
    assert texts(held.ask(input=given).prompt) == ["one" * 20]


@pytest.mark.parametrize(
    ("truncation", "kept"),
    [
        ("auto", ["rules", "two", "after two", "three"]),
        ("disabled", None),
        ({"type": "retention_ratio", "retention_ratio": 0.0}, ["rules", "three"]),
        ({"type": "retention_ratio", "retention_ratio": 1.0}, ["rules", "two", "after two", "three"]),
    ],
)
def test_truncation_is_what_the_session_says(truncation: Any, kept: list[str] | None) -> None:
    held = Held()
    fill(held)
    assert held.update(truncation=truncation)["truncation"] == truncation
    asked = held.ask()
    prompt = held.session.shorten(asked.response_id)
    assert (prompt and texts(prompt)) == kept


def test_a_response_with_items_of_its_own_is_not_shortened() -> None:
    held = Held()
    fill(held)
    asked = held.ask(input=[{"role": "user", "content": "a"}, {"role": "user", "content": "b"}])
    assert held.session.shorten(asked.response_id) is None
