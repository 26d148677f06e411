"""TextEncoder, which encodes short texts without protobuf, writes the same bytes as protobuf."""

from __future__ import annotations

import pytest

from omni_proto.stage.v1 import events_pb2, stage_service_pb2 as pb
from omni_stage.service.request.responses import TextEncoder, serialize_response


@pytest.mark.parametrize("size", [1, 2, 124, 125, 126, 127, 128, 129, 300, 20_000])
@pytest.mark.parametrize("letter", ["a", "é", "語", "😀"])
def test_a_text_is_what_protobuf_writes(size: int, letter: str) -> None:
    text = letter * size
    message = pb.GenerateResponse(stage="thinker", text=events_pb2.TextDelta(text=text))
    assert serialize_response(TextEncoder("thinker").encode(text)) == message.SerializeToString(deterministic=True)
    assert serialize_response(message) == message.SerializeToString()
