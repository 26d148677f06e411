"""Names and serializers of the service on the wire. Tensor chunks are encoded without protobuf objects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

from omni_proto.errors import WireError
from omni_proto.stage.v1 import events_pb2, stage_service_pb2
from omni_proto.tensors import (
    EncodedChunk,
    TensorChunkView,
    decode_generate_request,
    serialize_generate_request,
)
from omni_stage.service.encoding.field_count import MAX_FIELDS, has_too_many_fields

_SERVICE = stage_service_pb2.DESCRIPTOR.services_by_name["StageService"]
SERVICE_NAME = str(_SERVICE.full_name)
GENERATE = "Generate"
GET_STAGE = "GetStage"

EncodedResponse = NewType("EncodedResponse", bytes)
"""A whole GenerateResponse, as bytes."""

_KEY_TEXT = stage_service_pb2.GenerateResponse.TEXT_FIELD_NUMBER << 3 | 2
_KEY_TEXT_TEXT = events_pb2.TextDelta.TEXT_FIELD_NUMBER << 3 | 2
_SHORT = 0x7F - 2
"""Longest text in bytes for which each length prefix takes one byte."""

WireMessage = stage_service_pb2.GenerateRequest | TensorChunkView | tuple[TensorChunkView, ...] | WireError
"""What the deserializer returns. For a malformed message it returns the error as a value, which the servicer turns into
a status as usual."""


@dataclass(frozen=True, slots=True)
class OutgoingChunk:
    """One encoded message of tensor chunks."""

    wire: EncodedChunk
    data_bytes: int
    """Bytes of rows in the message."""


def deserialize_request(data: bytes) -> WireMessage:
    """Returns one decoded message of the caller. Never raises, because gRPC would end the call without a reason."""
    if has_too_many_fields(data):
        return WireError(f"it has more than {MAX_FIELDS} fields; a chat has at most 1,024 parts")
    try:
        return decode_generate_request(data)
    except WireError as error:
        return error


def serialize_request(message: stage_service_pb2.GenerateRequest | OutgoingChunk) -> bytes:
    """Returns the bytes of one message to a downstream stage."""
    return serialize_generate_request(message.wire if isinstance(message, OutgoingChunk) else message)


def serialize_response(message: stage_service_pb2.GenerateResponse | EncodedResponse) -> bytes:
    """Returns the bytes of one message to the caller."""
    return message if isinstance(message, bytes) else message.SerializeToString()


class TextEncoder:
    """Encodes a stage's texts as GenerateResponses, with the same bytes as protobuf.

    Most texts are single tokens, and therefore short. Short texts are encoded here, because building the protobuf
    message would take four times as long.
    """

    def __init__(self, stage: str) -> None:
        self._head = stage_service_pb2.GenerateResponse(stage=stage).SerializeToString()
        self._stage = stage

    def encode(self, text: str) -> EncodedResponse:
        """Returns the bytes of a message with this text."""
        data = text.encode()
        size = len(data)
        if size > _SHORT:
            delta = events_pb2.TextDelta(text=text)
            whole = stage_service_pb2.GenerateResponse(stage=self._stage, text=delta)
            return EncodedResponse(whole.SerializeToString())
        return EncodedResponse(self._head + bytes((_KEY_TEXT, size + 2, _KEY_TEXT_TEXT, size)) + data)
