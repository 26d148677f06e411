"""The errors of stages name the client's own fields."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import grpc
import pytest

from omni_gateway.client_paths import SPEECH
from omni_gateway.errors import answer_error, to_error
from omni_gateway.openai.chat_prompt import chat_paths
from omni_gateway.openai.chat_request import ChatRequest
from omni_proto.client import ArgumentError, OmniRequestError
from support.tables import each_row

URL = {"url": "data:,"}
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "assistant", "content": None, "audio": {"id": "a", "transcript": "Hello"}},
    {
        "role": "user",
        "content": [
            "Look",
            {"type": "image_url", "image_url": URL},
            {"type": "input_audio", "input_audio": {"data": "x", "format": "wav"}},
            {"type": "video_url", "video_url": "data:,"},
        ],
    },
    {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}]},
]
OWN = re.compile(r"start\.|\bchat\.[a-z]|parts\[|prompt_token_ids|structured_output\b|template_arguments|\bsampling\[")
"""Names that only stages have."""


def request(**fields: Any) -> ChatRequest:
    return ChatRequest.model_validate({"model": "m", "messages": MESSAGES, **fields})


@each_row(
    "field, param",
    [
        ("start.chat.messages[2].parts[0]", "messages[2].content[0]"),
        ("start.chat.messages[2].parts[1].image", "messages[2].content[1].image_url.url"),
        ("start.chat.messages[2].parts[2].audio.media_type", "messages[2].content[2].input_audio.data"),
        ("start.chat.messages[2].parts[3].video", "messages[2].content[3].video_url"),
        ("start.chat.messages[1].parts[0]", "messages[1].audio.transcript"),
        ("start.chat.messages[0].parts", "messages[0].content"),
        ("start.chat.messages[0].role", "messages[0].role"),
        ("start.chat.messages[3].tool_calls[0].arguments", "messages[3].tool_calls[0].function.arguments"),
        ("start.chat.messages[3].tool_calls[0].name", "messages[3].tool_calls[0].function.name"),
        ("start.chat.messages[3].tool_call_id", "messages[3].tool_call_id"),
        ("start.chat.messages", "messages"),
        ("start.chat", "messages"),
        ("start.chat.tools[1].parameters", "tools[1].function.parameters"),
        ("start.chat.tools[1].name", "tools[1].function.name"),
        ("start.chat.tools", "tools"),
        ("start.chat.tool_choice.mode", "tool_choice"),
        ("start.chat.template_arguments", "chat_template_kwargs"),
        ("start.chat.template_arguments.depth", "chat_template_kwargs.depth"),
        ("start.chat.use_audio_in_video", "mm_processor_kwargs.use_audio_in_video"),
        ("start.structured_output.json_schema", "response_format.json_schema.schema"),
        ("start.structured_output.json_schema.properties.a", "response_format.json_schema.schema.properties.a"),
        ("start.structured_output", "response_format"),
        ("start.sampling[thinker].stop[0]", "stop[0]"),
        ("start.sampling[thinker].max_tokens", "max_tokens"),
        ("start.sampling", None),
        ("sampling.top_p", "top_p"),
        ("temperature", "temperature"),
        ("start.audio.voice", "audio.voice"),
        ("start.modalities[0]", "modalities[0]"),
        ("start.seed", "seed"),
        ("start.cache_salt", "cache_salt"),
        ("start.input", "messages"),
        ("prompt_token_ids", "messages"),
        ("multi_modal_data.image", "messages"),
        ("tensors.mrope_positions", None),
        ("additional_information", None),
        ("params", None),
    ],
)
def test_a_field_of_a_stage_has_the_client_s_name(field: str, param: str | None) -> None:
    assert chat_paths(request()).translate(field) == param


def test_each_form_of_the_text_has_its_own_name() -> None:
    given = chat_paths(request(structured_outputs={"regex": "a"}, max_completion_tokens=5))
    assert given.translate("start.structured_output.regex") == "structured_outputs.regex"
    assert given.translate("start.structured_output.choice.texts") == "structured_outputs.choice"
    assert given.translate("start.structured_output.json_schema") == "structured_outputs.json"
    assert given.translate("start.structured_output") == "structured_outputs"
    assert given.translate("start.sampling[thinker].max_tokens") == "max_completion_tokens"
    assert given.translate_text("min_tokens must be at most max_tokens (4)") == (
        "min_tokens must be at most max_completion_tokens (4)"
    )


def test_a_speech_request_has_one_text() -> None:
    fields = ("start.reply.text", "start.reply", "start.chat.messages[0].parts[0]", "prompt_token_ids", "start.input")
    assert [SPEECH.translate(field) for field in fields] == ["input"] * len(fields)
    assert SPEECH.translate("start.audio.voice") == "voice"
    assert SPEECH.translate("start.seed") == "seed"
    assert SPEECH.translate("start.sampling[thinker].top_p") is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("start.chat.messages[2].role: must be one of", "messages[2].role: must be one of"),
        ("start.chat: the prompt has no tokens", "messages: the prompt has no tokens"),
        ("chat.tools takes 70000 bytes", "tools takes 70000 bytes"),
        ("leave out start.chat.template_arguments, or the reply", "leave out chat_template_kwargs, or the reply"),
        ("structured_output.json_schema takes 9 bytes", "response_format.json_schema.schema takes 9 bytes"),
        ("set one of them; or leave structured_output out", "set one of them; or leave response_format out"),
        ("prompt_token_ids: 5 tokens", "messages: 5 tokens"),
        ("the messages of a chat. Send less", "the messages of a chat. Send less"),
        ("limits.maxPromptChars and engineArgs.toolCallParser", "limits.maxPromptChars and engineArgs.toolCallParser"),
    ],
)
def test_texts_name_the_client_s_fields(text: str, said: str) -> None:
    assert chat_paths(request()).translate_text(text) == said


def test_no_text_of_the_stage_server_keeps_a_name_of_its_own() -> None:
    """Reads the fields and texts in the source, so that a new one that is not translated is found."""
    source = "\n".join(file.read_text(encoding="utf-8") for file in Path("stage_server/omni_stage").rglob("*.py"))
    named = set(re.findall(r"[\"'](start\.[a-z_.]+)[\"':]", source))
    assert len(named) > 25
    paths = chat_paths(request())
    for name in named - {"start.prompt_embeds", "start.edge_schema_hash", "start.include"}:
        param = paths.translate(name)
        assert param is None or not OWN.search(param), name
        assert not OWN.search(paths.translate_text(f"{name}: is wrong")), name


@pytest.mark.parametrize(
    ("field", "param"),
    [
        ("prompt", "messages"),
        ("sampling[thinker].top_k", "top_k"),
        ("tools[1].parameters", "tools[1].function.parameters"),
        ("template_arguments", "chat_template_kwargs"),
        ("structured_output.json_schema", "response_format.json_schema.schema"),
        ("timeout", None),
        ("", None),
    ],
)
def test_an_argument_of_the_client_library_is_a_field_of_the_body(field: str, param: str | None) -> None:
    assert to_error(ArgumentError("it is wrong", field=field), chat_paths(request())).param == param


def too_long(**fields: Any) -> OmniRequestError:
    field = "prompt_token_ids"
    return OmniRequestError(grpc.StatusCode.INVALID_ARGUMENT, "it is", reason="PROMPT_TOO_LONG", field=field, **fields)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        (
            {"stage": "thinker", "limit": "2047 tokens", "actual": "6027 tokens"},
            "This model's maximum context length is 2048 tokens. However, your messages resulted in 6027 tokens. "
            "Please reduce the length of the messages. (it is) (stage thinker)",
        ),
        (
            {"stage": "thinker", "limit": "2047 tokens"},
            "This model's maximum context length is 2048 tokens. However, your messages resulted in more than 2047 "
            "tokens. Please reduce the length of the messages. (it is) (stage thinker)",
        ),
        (
            {"stage": "talker", "limit": "99 tokens", "actual": "100 tokens"},
            "This model's maximum context length is 99 tokens. However, your messages resulted in 100 tokens. "
            "Please reduce the length of the messages. (it is) (stage talker)",
        ),
    ],
)
def test_a_prompt_that_is_too_long_has_openai_s_message(fields: dict[str, str], says: str) -> None:
    """LiteLLM, Cline and many others look for these words and then fall back or shorten the conversation."""
    answer = answer_error(to_error(too_long(**fields), chat_paths(request()), {"thinker": 2048}))
    error = {"message": says, "type": "invalid_request_error", "param": "messages", "code": "context_length_exceeded"}
    assert (answer.status, answer.body["error"]) == (400, error)
