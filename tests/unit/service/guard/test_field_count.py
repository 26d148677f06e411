"""A request with millions of parts is refused before protobuf creates an object for each part."""

from __future__ import annotations

import pytest

from omni_proto.errors import WireError
from omni_proto.stage.v1 import prompt_pb2, stage_service_pb2 as pb
from omni_stage.service.guard.field_count import has_too_many_fields
from omni_stage.service.request.reading import deserialize_request

NOTHING = prompt_pb2.ContentPart()


def chat(messages: int, parts: int, text: str = "") -> bytes:
    part = prompt_pb2.ContentPart(text=text) if text else NOTHING
    start = pb.Start()
    for _ in range(messages):
        start.chat.messages.add(role="user").parts.extend([part] * parts)
    return pb.GenerateRequest(start=start).SerializeToString()


def sampled(count: int) -> bytes:
    start = pb.Start(text="a" * 20_000)
    for number in range(count):
        start.sampling[f"stage{number}"].stop.extend(["x"] * 2)
    return pb.GenerateRequest(start=start).SerializeToString()


def chunks(count: int, data: bytes) -> bytes:
    return pb.GenerateRequest(tensors={"chunks": [{"data": data}] * count}).SerializeToString()


def start(**fields: object) -> bytes:
    return pb.GenerateRequest(start=pb.Start(**fields)).SerializeToString()


@pytest.mark.parametrize(
    ("data", "refused"),
    [
        pytest.param(chat(1, 1 << 22), True, id="four million empty parts"),
        pytest.param(chat(1024, 1024), True, id="a million parts"),
        pytest.param(chat(1 << 14, 0), True, id="messages without parts"),
        pytest.param(sampled(5000), True, id="sampling of stages that do not exist"),
        pytest.param(chat(1024, 1, "word " * 200), False, id="a conversation"),
        pytest.param(chat(1, 1024, "word " * 200), False, id="as many parts as there may be"),
        pytest.param(sampled(16), False, id="sampling of every stage"),
        pytest.param(pb.GenerateRequest(start=pb.Start(text="a" * (1 << 20))).SerializeToString(), False, id="text"),
        pytest.param(b"\x0b\x0c" + chat(1, 1 << 20), True, id="a group before it"),
        pytest.param(chat(1, 1 << 20) + chat(1, 1), True, id="two that are merged"),
        pytest.param(chunks(1 << 20, b""), True, id="a million empty tensor chunks"),
        pytest.param(start(modalities=[1] * (1 << 20)), True, id="a million packed modalities"),
        pytest.param(start(tensors={"tensors": [{}] * (1 << 20)}), True, id="a million headers"),
        pytest.param(start(tensors={"tensors": [{"row_shape": [1] * (1 << 20)}]}), True, id="a million dimensions"),
        pytest.param(start(prompt_embeds={"row_shape": [1] * (1 << 20)}), True, id="the same of embeddings"),
        pytest.param(
            start(sampling={"thinker": {"stop_token_ids": [1] * (1 << 20)}}), True, id="a million packed stop tokens"
        ),
        pytest.param(
            start(structured_output={"choice": {"texts": [""] * (1 << 20)}}), True, id="a million empty choices"
        ),
        pytest.param(start(token_ids={"ids": [1] * (1 << 20)}), False, id="token ids, which are counted later"),
        pytest.param(start(structured_output={"choice": {"texts": ["x" * 60] * 1024}}), False, id="all choices"),
        pytest.param(chunks(8, bytes(1 << 17)), False, id="the chunks of a step"),
    ],
)
def test_what_repeats_is_counted(data: bytes, refused: bool) -> None:
    assert len(data) <= 8 << 20 or refused
    assert has_too_many_fields(data) is refused
    assert isinstance(deserialize_request(data), WireError) is refused


@pytest.mark.parametrize("cut", [17_000, 20_001, 30_000])
def test_bytes_that_end_early_are_the_parsers_business(cut: int) -> None:
    """A truncated message is not refused for its number of fields, but protobuf's parser refuses it."""
    data = chat(64, 8, "word " * 20)[:cut]
    assert not has_too_many_fields(data)
    assert isinstance(deserialize_request(data), WireError)


def test_numbers_without_end_are_no_trouble() -> None:
    """Bytes that are an endless varint do not count as too many fields."""
    assert not has_too_many_fields(b"\xff" * (1 << 20))
