"""What the client sends, and what it refuses to send: arguments to messages, without a server."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_proto.client import (
    ArgumentError,
    CallTool,
    ChatMessage,
    OmniClient,
    StructuredOutput,
    Tool,
    ToolCall,
    assistant,
    audio_part,
    image_part,
    system,
    tool_result,
    user,
)
from omni_proto.client.arguments import GenerateArguments
from omni_proto.client.media import as_chat
from omni_proto.client.request import (
    MAX_INLINE_BYTES,
    GenerateOptions,
    PreparedRequest,
    call_metadata,
    prepare_request,
    sampling_params,
)
from omni_proto.media_header import sniff
from omni_proto.rpc.options import MAX_MESSAGE_BYTES, channel_options, server_options
from omni_proto.stage.v1 import prompt_pb2, sampling_pb2, tensors_pb2
from omni_proto.stage.v1.stage_service_pb2 import GenerateRequest
from omni_proto.tensors import TensorAssembler, TensorChunkView, decode_generate_request, prompt_embeds_spec

PNG = b"\x89PNG\r\n\x1a\n" + bytes(16)
JPEG = b"\xff\xd8\xff\xe0" + bytes(16)
WAV = b"RIFF\x24\0\0\0WAVEfmt " + bytes(16)
FLAC = b"fLaC" + bytes(16)


PROMPTS = ("text", "chat", "raw_text", "token_ids", "prompt_embeds")

CALL = ("timeout", "request_id", "traceparent", "metadata")


def prepare(**arguments: Any) -> PreparedRequest:
    options = {name: arguments.pop(name) for name in list(arguments) if name not in PROMPTS}
    return prepare_request(options=GenerateOptions(**options), **arguments)


def sent(**arguments: Any) -> list[GenerateRequest]:
    return list(prepare(**arguments).messages())


def test_text_is_what_the_user_says_in_a_chat() -> None:
    start, end = sent(text="hello")
    assert start == sent(chat=user("hello"))[0]
    assert [(item.role, item.parts[0].text) for item in start.start.chat.messages] == [("user", "hello")]
    assert end.WhichOneof("message") == "end"


def test_raw_text_is_start_and_end() -> None:
    start, end = sent(raw_text="hello", sampling={"thinker": {"temperature": 0.0, "stop": "x", "top_k": None}}, seed=7)
    assert start.start.text == "hello"
    assert start.start.seed == 7
    params = start.start.sampling["thinker"]
    assert params.HasField("temperature")
    assert not params.HasField("top_k")
    assert list(params.stop) == ["x"]
    assert end.WhichOneof("message") == "end"


def test_unset_options_stay_unset() -> None:
    start = sent(raw_text="hello")[0].start
    assert not start.HasField("seed")
    assert not start.modalities
    assert not start.sampling
    assert not start.edge_schema_hash


def test_every_option_reaches_its_field() -> None:
    start = sent(
        token_ids=[1, 2],
        modalities=["text", "Audio"],
        voice="Chelsie",
        encoding="pcm_f32le",
        include_token_ids=True,
        include_codec_tokens=True,
        include_timings=True,
        allow_partial=True,
        priority=-7,
        cache_salt="tenant",
    )[0].start
    assert (start.priority, start.cache_salt) == (-7, "tenant")
    assert list(start.token_ids.ids) == [1, 2]
    assert list(start.modalities) == [sampling_pb2.MODALITY_TEXT, sampling_pb2.MODALITY_AUDIO]
    assert start.audio.voice == "Chelsie"
    assert start.audio.encoding == sampling_pb2.AUDIO_ENCODING_PCM_F32LE
    assert (start.include.token_ids, start.include.codec_tokens, start.include.timings) == (True, True, True)
    assert start.allow_partial


def test_chat_keeps_the_order_of_parts() -> None:
    chat = [
        system("be brief"),
        user("what is", image_part(PNG), "and", audio_part(WAV)),
        assistant("a cat"),
        user("so"),
    ]
    messages = sent(chat=chat)[0].start.chat.messages
    assert [m.role for m in messages] == ["system", "user", "assistant", "user"]
    assert [part.WhichOneof("part") for part in messages[1].parts] == ["text", "image", "text", "audio"]
    assert messages[1].parts[1].image.media_type == "image/png"
    assert messages[1].parts[1].image.data == PNG
    assert messages[1].parts[3].audio.media_type == "audio/wav"


def test_embeddings_are_announced_and_follow_in_whole_rows() -> None:
    array = np.arange(700 * 1000, dtype=np.float32).reshape(700, 1000)
    start, *chunks, end = sent(prompt_embeds=array)
    header = start.start.prompt_embeds
    assert (header.name, header.dtype, list(header.row_shape), header.max_rows) == (
        "prompt_embeds",
        tensors_pb2.DTYPE_FLOAT32,
        [1000],
        700,
    )
    views = [decode_generate_request(message.SerializeToString()) for message in chunks]
    assembler = TensorAssembler(prompt_embeds_spec(1000, "float32"), 700)
    for view in views:
        assert isinstance(view, TensorChunkView)
        assert len(view.data) <= 1 << 20
        assembler.add(view)
    assert np.array_equal(assembler.finish().to_numpy(), array)
    assert len(chunks) == 3
    assert end.WhichOneof("message") == "end"


@pytest.mark.parametrize(
    "array",
    [
        pytest.param([[1.0]], id="a list"),
        pytest.param(np.ones(3, dtype=np.float32), id="one dimension"),
        pytest.param(np.ones((2, 3)), id="float64"),
        pytest.param(np.ones((0, 3), dtype=np.float32), id="no rows"),
        pytest.param(np.ones((3, 4), dtype=np.float32).T, id="not contiguous"),
        pytest.param(np.ones((2, 3), dtype=">f4"), id="big-endian"),
        pytest.param(np.ones((1, (1 << 20) + 1), dtype=np.float32), id="a row larger than the protocol's"),
    ],
)
def test_what_are_no_embeddings(array: Any) -> None:
    with pytest.raises(ArgumentError, match="prompt_embeds"):
        prepare(prompt_embeds=array)


@pytest.mark.parametrize("options", [{"priority": 2**31}, {"priority": "high"}, {"cache_salt": 3}])
def test_wrong_priority_and_salt(options: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match="priority must be an integer"):
        prepare(raw_text="x", **options)


def test_one_message_is_a_conversation() -> None:
    assert as_chat(user("hi")) == as_chat([ChatMessage("user", ("hi",))])


def test_large_media_follow_in_chunks() -> None:
    large = PNG + bytes(MAX_INLINE_BYTES) + b"end"
    start, *chunks, end = sent(chat=[user(image_part(large), image_part(JPEG))])
    first, second = start.start.chat.messages[0].parts
    assert first.image.chunked.total_bytes == len(large)
    assert second.image.data == JPEG
    assert {c.media.media_id for c in chunks} == {first.image.chunked.media_id}
    assert [c.media.offset for c in chunks] == [i * 1024 * 1024 for i in range(len(chunks))]
    assert b"".join(c.media.data for c in chunks) == large
    assert end.WhichOneof("message") == "end"


def test_media_of_one_start_fit_one_message_together() -> None:
    images = [image_part(PNG + bytes(3 * 1024 * 1024)) for _ in range(4)]
    messages = sent(chat=[user(*images)])
    assert all(m.ByteSize() < MAX_MESSAGE_BYTES for m in messages)
    parts = messages[0].start.chat.messages[0].parts
    assert [p.image.WhichOneof("source") for p in parts] == ["data", "chunked", "chunked", "chunked"]
    assert [p.image.chunked.media_id for p in parts[1:]] == [1, 2, 3]


def test_messages_can_be_made_again_for_a_retry() -> None:
    prepared = prepare(chat=user(image_part(PNG + bytes(MAX_INLINE_BYTES))))
    assert list(prepared.messages()) == list(prepared.messages())


@pytest.mark.parametrize(
    ("data", "media_type"),
    [
        (PNG, "image/png"),
        (JPEG, "image/jpeg"),
        (WAV, "audio/wav"),
        (FLAC, "audio/flac"),
        (b"GIF89a", None),
        (b"", None),
    ],
)
def test_media_types_are_found_by_content(data: bytes, media_type: str | None) -> None:
    assert sniff(data) == media_type


def test_media_come_from_files_too(tmp_path: Path) -> None:
    path = tmp_path / "sound.bin"
    path.write_bytes(FLAC)
    assert audio_part(path) == audio_part(str(path)) == audio_part(FLAC)
    with pytest.raises(FileNotFoundError):
        image_part(tmp_path / "missing.png")


BAD = {
    "no prompt": ({}, "exactly one"),
    "two prompts": ({"text": "a", "chat": user("b")}, "text and chat"),
    "chat of text": ({"chat": "b"}, "what the user says is text="),
    "empty chat": ({"chat": []}, "at least one message"),
    "chat of dicts": ({"chat": [{"role": "user"}]}, "ChatMessage"),
    "no token ids": ({"token_ids": []}, "at least one id"),
    "negative token id": ({"token_ids": [-1]}, "token_ids"),
    "token ids as text": ({"token_ids": "12"}, "token_ids"),
    "misspelt parameter": ({"raw_text": "a", "sampling": {"thinker": {"temprature": 1}}}, "did you mean temperature"),
    "unknown parameter": ({"raw_text": "a", "sampling": {"thinker": {"zzz": 1}}}, "max_tokens"),
    "wrong type": (
        {"raw_text": "a", "sampling": {"thinker": {"max_tokens": "ten"}}},
        r"max_tokens must be int, got str",
    ),
    "out of range": ({"raw_text": "a", "sampling": {"thinker": {"max_tokens": -1}}}, r"sampling\[thinker\].max_tokens"),
    "list of wrong type": ({"raw_text": "a", "sampling": {"t": {"stop": [1]}}}, "a list of str"),
    "flat sampling": ({"raw_text": "a", "sampling": {"temperature": 1}}, "must map"),
    "negative seed": ({"raw_text": "a", "seed": -1}, "seed"),
    "modality": ({"raw_text": "a", "modalities": ["video"]}, "text or audio"),
    "encoding": ({"raw_text": "a", "encoding": "mp3"}, "pcm_s16le"),
    "text too long": ({"raw_text": "a" * MAX_MESSAGE_BYTES}, "shorten"),
}


@pytest.mark.parametrize(("arguments", "message"), BAD.values(), ids=BAD.keys())
def test_wrong_arguments_are_refused_before_anything_is_sent(arguments: dict[str, Any], message: str) -> None:
    with OmniClient("localhost:1") as client, pytest.raises(ArgumentError, match=message):
        client.generate(**arguments)


def test_an_argument_that_is_none_is_refused_at_once() -> None:
    with OmniClient("localhost:1") as client, pytest.raises(TypeError, match="unknown arguments: sede"):
        client.run(text="a", sede=1)  # type: ignore[call-arg]


def test_every_option_is_an_argument() -> None:
    options = {field.name for field in dataclasses.fields(GenerateOptions)}
    assert set(GenerateArguments.__annotations__) == {*PROMPTS, *options, *CALL}


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf")])
def test_timeouts_are_positive(timeout: float) -> None:
    with OmniClient("localhost:1") as client, pytest.raises(ArgumentError, match="timeout"):
        client.generate(raw_text="a", timeout=timeout)


@pytest.mark.parametrize(("role", "parts"), [("robot", ("a",)), ("user", ()), ("user", (1,))])
def test_wrong_messages_are_refused(role: str, parts: tuple[Any, ...]) -> None:
    with pytest.raises(ArgumentError):
        ChatMessage(role, parts)


def test_media_of_the_wrong_kind_are_refused() -> None:
    with pytest.raises(ArgumentError, match="PNG or JPEG"):
        image_part(WAV)
    with pytest.raises(ArgumentError, match="WAV or FLAC"):
        audio_part(b"ID3")


def test_every_parameter_of_the_protocol_can_be_given() -> None:
    for field in sampling_pb2.SamplingParams.DESCRIPTOR.fields:
        value: Any = [1] if field.name == "stop_token_ids" else ["a"] if field.name == "stop" else 1
        assert sampling_params("s", {field.name: value}).ListFields()


def test_ids_become_metadata() -> None:
    assert call_metadata("r-1", "00-ab-cd-01", (("x-tenant", "t"),)) == (
        ("x-tenant", "t"),
        ("x-request-id", "r-1"),
        ("traceparent", "00-ab-cd-01"),
    )
    for bad in ("", "a b", "a\n", "ü", "x" * 257):
        with pytest.raises(ArgumentError, match="x-request-id"):
            call_metadata(bad, None)


def test_channel_and_server_agree() -> None:
    client, server = dict(channel_options()), dict(server_options(12.5))
    for option in ("grpc.max_receive_message_length", "grpc.max_send_message_length"):
        assert client[option] == server[option] == MAX_MESSAGE_BYTES
    assert server["grpc.max_connection_age_grace_ms"] == 12_500
    # A server that finds pings too frequent closes the connection.
    assert int(client["grpc.keepalive_time_ms"]) >= int(server["grpc.http2.min_ping_interval_without_data_ms"])
    assert "round_robin" in str(client["grpc.service_config"])
    assert client["grpc.enable_http_proxy"] == 0


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
        ({"text": "x", "tools": [Tool("a", parameters={"x": {1}})]}, r"tools\[0\].parameters must be what JSON"),
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
