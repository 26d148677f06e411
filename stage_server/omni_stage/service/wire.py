"""Names of the service on the wire, and the messages to downstream stages as bytes. Tensor chunks are encoded without
protobuf objects."""

from __future__ import annotations

from dataclasses import dataclass

from omni_proto.stage.v1 import stage_service_pb2
from omni_proto.tensors import EncodedChunk, serialize_generate_request

SERVICE_NAME = str(stage_service_pb2.DESCRIPTOR.services_by_name["StageService"].full_name)
GENERATE = "Generate"
GET_STAGE = "GetStage"


@dataclass(frozen=True, slots=True)
class OutgoingChunk:
    """One encoded message of tensor chunks."""

    wire: EncodedChunk
    data_bytes: int
    """Bytes of rows in the message."""


def serialize_request(message: stage_service_pb2.GenerateRequest | OutgoingChunk) -> bytes:
    """Returns the bytes of one message to a downstream stage."""
    return serialize_generate_request(message.wire if isinstance(message, OutgoingChunk) else message)
