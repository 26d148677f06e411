"""RequestReader as a state machine: hypothesis feeds it any message at any time and compares it with a small model.

A message that violates the protocol must raise the error that the model predicts and must change nothing, so that a
correct message is still accepted afterwards.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from omni_proto.errors import CorruptTensorError, InvalidTensorError, WireError
from omni_proto.stage.v1 import stage_service_pb2 as pb
from omni_proto.tensors import TensorChunkView, TensorSchema, TensorSpec, crc32c, schema_hash, tensor_prompt
from omni_stage.errors import ProtocolViolationError
from omni_stage.service.request.planning.announced import check_edge
from omni_stage.service.request.reading import RequestReader

SCHEMA = TensorSchema("test/states", 1, (TensorSpec("x", "int16", (2,)), TensorSpec("ids", "uint8")))
MAX_ROWS = 6
MEDIA_BYTES = {1: 5, 2: 1}
TENSORS = st.sampled_from(SCHEMA.names)
WIDTH = {spec.name: spec.row_bytes for spec in SCHEMA.tensors}


def chunk(name: str, offset: int, rows: int, last: bool, **changes: Any) -> TensorChunkView:
    data = bytes(range(rows * WIDTH.get(name, 1)))
    fields = {"crc32c": crc32c(data), "data": memoryview(data), **changes}
    return TensorChunkView(name=name, row_offset=offset, rows=rows, last=last, **fields)


class ReaderStates(RuleBasedStateMachine):
    """The reader and its model, which says what the reader must hold: `rows`, `complete` and `media`."""

    def __init__(self) -> None:
        super().__init__()
        self.reader = RequestReader()
        self.started = self.ended = False
        self.rows = dict.fromkeys(SCHEMA.names, 0)
        self.complete: set[str] = set()
        self.media = dict.fromkeys(MEDIA_BYTES, 0)

    def refuse(self, message: Any, error: type[Exception]) -> None:
        feed = self.reader.feed if self.started else self.reader.start
        with pytest.raises(error):
            feed(message)

    @initialize(early=st.sampled_from([None, pb.GenerateRequest(end=pb.End()), chunk("x", 0, 1, False)]))
    def begin(self, early: Any) -> None:
        """Sends Start, perhaps after a message that must not come first."""
        if early is not None:
            self.refuse(early, ProtocolViolationError)
        prompt = tensor_prompt(SCHEMA, "thinker", [(name, MAX_ROWS) for name in SCHEMA.names])
        request = pb.GenerateRequest(start=pb.Start(tensors=prompt, edge_schema_hash=schema_hash(SCHEMA)))
        start = self.reader.start(request)
        # No stage expects both media and tensors, but the reader allows it.
        self.reader.expect(MEDIA_BYTES, check_edge(start, "thinker", SCHEMA))
        self.started = True

    @rule(name=TENSORS, rows=st.integers(0, 3), last=st.booleans())
    def next_chunk(self, name: str, rows: int, last: bool) -> None:
        """Sends a chunk at the right offset. The tensor may already be complete, or the chunk too long or empty."""
        message = chunk(name, self.rows[name], rows, last)
        if self.ended:
            self.refuse(message, ProtocolViolationError)
        elif name in self.complete:
            self.refuse(message, CorruptTensorError)
        elif self.rows[name] + rows > MAX_ROWS or (rows == 0 and not last):
            self.refuse(message, InvalidTensorError)
        else:
            self.reader.feed(message)
            self.rows[name] += rows
            if last:
                self.complete.add(name)

    @precondition(lambda self: not self.ended)
    @rule()
    def chunks_together(self) -> None:
        """Sends one row of each incomplete tensor in one message; all of these rows must be received.

        A message without chunks, which says that the caller is alive, changes nothing.
        """
        names = [name for name in SCHEMA.names if name not in self.complete and self.rows[name] < MAX_ROWS]
        message = tuple(chunk(name, self.rows[name], 1, False) for name in names)
        self.reader.feed(message)
        for name in names:
            self.rows[name] += 1

    @rule(name=TENSORS, shift=st.sampled_from([-2, -1, 1, 2, 2**63]), rows=st.integers(1, 2), last=st.booleans())
    def misplaced_chunk(self, name: str, shift: int, rows: int, last: bool) -> None:
        offset = self.rows[name] + shift
        if offset >= 0:
            error = ProtocolViolationError if self.ended else CorruptTensorError
            self.refuse(chunk(name, offset, rows, last), error)

    @rule(name=TENSORS, damage=st.sampled_from(["crc", "length"]))
    def damaged_chunk(self, name: str, damage: str) -> None:
        changes: dict[str, Any] = {"crc32c": 1} if damage == "crc" else {"data": memoryview(b"123456789")}
        full = name not in self.complete and self.rows[name] + 1 > MAX_ROWS and damage == "crc"
        error = ProtocolViolationError if self.ended else InvalidTensorError if full else CorruptTensorError
        self.refuse(chunk(name, self.rows[name], 1, False, **changes), error)

    @rule()
    def unknown_tensor(self) -> None:
        self.refuse(chunk("other", 0, 1, True), ProtocolViolationError if self.ended else InvalidTensorError)

    @rule(media_id=st.sampled_from([0, 1, 2, 3]), shift=st.sampled_from([0, 0, 0, 1, -1]), size=st.integers(0, 3))
    def medium(self, media_id: int, shift: int, size: int) -> None:
        """Sends a piece of a medium, which may be unannounced, out of order, too long or empty."""
        offset = self.media.get(media_id, 0) + shift
        if offset < 0:
            return
        message = pb.GenerateRequest(media={"media_id": media_id, "offset": offset, "data": bytes(size)})
        fits = media_id in MEDIA_BYTES and shift == 0 and 0 < size <= MEDIA_BYTES[media_id] - offset
        if self.ended or not fits:
            self.refuse(message, ProtocolViolationError)
        else:
            self.reader.feed(message)
            self.media[media_id] += size

    @rule(message=st.sampled_from(["start", "empty", "damaged"]))
    def nonsense(self, message: str) -> None:
        """Sends a second Start, an empty message, or bytes that are not a message."""
        kinds = {
            "start": pb.GenerateRequest(start=pb.Start()),
            "empty": pb.GenerateRequest(),
            "damaged": WireError("no"),
        }
        self.refuse(kinds[message], ProtocolViolationError)

    @rule()
    def end(self) -> None:
        message = pb.GenerateRequest(end=pb.End())
        if self.ended or self.media != MEDIA_BYTES:
            self.refuse(message, ProtocolViolationError)
        elif len(self.complete) < len(SCHEMA.names):
            self.refuse(message, CorruptTensorError)
        else:
            self.reader.feed(message)
            self.ended = True
            received = {name: (tensor.rows, len(tensor.data)) for name, tensor in self.reader.tensors.items()}
            assert received == {name: (rows, rows * WIDTH[name]) for name, rows in self.rows.items()}

    @precondition(lambda self: not self.ended)
    @rule()
    def complete_all(self) -> None:
        """Sends everything that is missing and then End, so that many runs reach End."""
        for name in set(SCHEMA.names) - self.complete:
            self.next_chunk(name, min(1, MAX_ROWS - self.rows[name]), True)
        for media_id, size in MEDIA_BYTES.items():
            if self.media[media_id] < size:
                self.medium(media_id, 0, size - self.media[media_id])
        self.end()
        assert self.ended

    @rule()
    def hang_up(self) -> None:
        """The client closes its side of the stream, which is allowed only after End."""
        if self.ended:
            self.reader.end_of_stream()
        else:
            with pytest.raises(ProtocolViolationError):
                self.reader.end_of_stream()

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        if not self.started or self.ended:
            return
        assert self.reader.edge is not None
        assert dict(self.reader.edge.rows) == self.rows
        assert {media_id: len(buffer.data) for media_id, buffer in self.reader.media.items()} == self.media


ReaderStates.TestCase.settings = settings(max_examples=150, stateful_step_count=40)
TestReaderStates = ReaderStates.TestCase
