"""Which messages the client makes from its arguments, and which arguments it refuses. No server is needed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from omni_proto.client import (
    ArgumentError,
    ChatMessage,
    OmniClient,
    StructuredOutput,
    Tool,
    assistant,
    audio_part,
    image_part,
    system,
    user,
)
from omni_proto.client.messages import call_metadata, prepare_call, sampling_params
from omni_proto.client.prompt import GenerateArguments, as_chat
from omni_proto.rpc.options import MAX_MESSAGE_BYTES, channel_options, server_options
from omni_proto.stage.v1 import sampling_pb2, tensors_pb2
from omni_proto.tensors import TensorAssembler, TensorChunkView, decode_generate_request, prompt_embeds_spec
from support.peers.client_requests import PNG, WAV, prepare, sent
from support.tables import each_row

HALF = "ab\ud83d"


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
def test_unsupported_arrays_are_refused_as_embeddings(array: Any) -> None:
    """Arrays of an unsupported shape, dtype or layout are refused as prompt embeddings."""
    with pytest.raises(ArgumentError, match="prompt_embeds"):
        prepare(prompt_embeds=array)


@pytest.mark.parametrize("options", [{"priority": 2**31}, {"priority": "high"}, {"cache_salt": 3}])
def test_wrong_priority_and_salt(options: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match="priority must be an integer"):
        prepare(raw_text="x", **options)


def test_one_message_is_a_conversation() -> None:
    assert as_chat(user("hi")) == as_chat([ChatMessage("user", ("hi",))])


BAD = {
    "no prompt": ({}, "exactly one"),
    "two prompts": ({"text": "a", "chat": user("b")}, "text and chat"),
    "chat of text": ({"chat": "b"}, "for one text of the user give text="),
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


@each_row("arguments, message", BAD.values(), ids=BAD.keys())
def test_wrong_arguments_are_refused_before_anything_is_sent(arguments: dict[str, Any], message: str) -> None:
    with OmniClient("localhost:1") as client, pytest.raises(ArgumentError, match=message):
        client.generate(**arguments)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({}, ""),
        ({"token_ids": []}, "token_ids"),
        ({"raw_text": "a", "sampling": {"thinker": {"top_k": "ten"}}}, "sampling[thinker].top_k"),
        ({"raw_text": "a", "seed": -1}, "seed"),
        ({"text": "a", "tools": ["look_up"]}, "tools[0]"),
        ({"text": "a", "template_arguments": {"depth": float("nan")}}, "template_arguments"),
        ({"text": "a" * (9 << 20)}, "prompt"),
    ],
)
def test_an_error_has_the_path_of_the_wrong_argument(arguments: dict[str, Any], field: str) -> None:
    with pytest.raises(ArgumentError) as wrong:
        prepare(**arguments)
    assert wrong.value.field == field


def test_an_unknown_argument_is_refused_at_once() -> None:
    """An unknown argument raises TypeError before anything is sent."""
    with OmniClient("localhost:1") as client, pytest.raises(TypeError, match="unknown arguments: sede"):
        client.run(text="a", sede=1)  # type: ignore[call-arg]


OPTIONS: dict[str, Any] = {
    "sampling": {"thinker": {"top_k": 2}},
    "seed": 0,
    "modalities": ["text"],
    "voice": "Chelsie",
    "encoding": "pcm_f32le",
    "include_token_ids": True,
    "include_codec_tokens": True,
    "include_timings": True,
    "allow_partial": True,
    "priority": 1,
    "cache_salt": "tenant",
    "reply": "Good morning!",
    "tools": [Tool("look_up")],
    "tool_choice": "none",
    "structured_output": StructuredOutput(json_object=True),
    "use_audio_in_video": True,
    "template_arguments": {"enable_thinking": False},
    "timeout": 1.0,
    "request_id": "r-1",
    "traceparent": "00-ab-cd-01",
    "metadata": (("x-tenant", "t"),),
}
PROMPTS = {"text", "chat", "raw_text", "token_ids", "prompt_embeds"}


def test_every_declared_argument_reaches_the_call() -> None:
    assert {*OPTIONS, *PROMPTS} == set(GenerateArguments.__annotations__)
    plain = prepare_call({"chat": user("a")})
    for name, value in OPTIONS.items():
        assert prepare_call({"chat": user("a"), name: value}) != plain, name  # type: ignore[misc]


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"text": HALF}, "text"),
        ({"raw_text": HALF}, "raw_text"),
        ({"text": "a", "voice": HALF}, "voice"),
        ({"text": "a", "cache_salt": HALF}, "cache_salt"),
        ({"text": "a", "reply": HALF}, "reply"),
        ({"chat": user(HALF)}, "a text of the request"),
        ({"text": "a", "tools": [Tool("look_up", HALF)]}, "a text of the request"),
    ],
)
def test_text_that_utf8_does_not_have_is_refused(arguments: GenerateArguments, field: str) -> None:
    """JSON can hold half of a surrogate pair, so a model's answer may bring it into a program."""
    with pytest.raises(ArgumentError, match=rf"^{field} holds half of a surrogate pair \(character 2\)"):
        prepare_call(arguments)


def test_token_ids_may_be_an_array() -> None:
    assert list(sent(token_ids=np.arange(1, 4))[0].start.token_ids.ids) == [1, 2, 3]
    with pytest.raises(ArgumentError, match="at least one"):
        prepare(token_ids=np.arange(0))


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf")])
def test_timeouts_are_positive(timeout: float) -> None:
    with OmniClient("localhost:1") as client, pytest.raises(ArgumentError, match="timeout"):
        client.generate(raw_text="a", timeout=timeout)


@pytest.mark.parametrize(("role", "parts"), [("robot", ("a",)), ("user", ()), ("user", (1,))])
def test_wrong_messages_are_refused(role: str, parts: tuple[Any, ...]) -> None:
    with pytest.raises(ArgumentError):
        ChatMessage(role, parts)


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
