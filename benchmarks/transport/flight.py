"""Arrow Flight as a side: a DoPut call for each lane, and record batches with one fixed-size column.

Batches of about 1 MiB are fastest for large tensors, although they are copied once when they are joined. A tensor in a
single batch is not copied at all.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np
import pyarrow as pa
from pyarrow import flight

from benchmarks.transport.lanes import BlockingClient, Client, Lane
from benchmarks.transport.payload import ROW_BYTES, checksum, verify

_SCHEMA = pa.schema([pa.field("x", pa.binary(ROW_BYTES), nullable=False)])
_HEAD = struct.Struct("<IQQ")
"""Checksum of the batch, offset of its first byte in the tensor, and size of the whole tensor in bytes."""


class _Server(flight.FlightServerBase):
    def do_put(
        self,
        context: flight.ServerCallContext,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.FlightMetadataWriter,
    ) -> None:
        tensor = np.empty(0, np.uint8)
        for chunk in reader:
            expected, start, total = _HEAD.unpack(chunk.app_metadata.to_pybytes())
            part = np.frombuffer(chunk.data.column(0).buffers()[1], np.uint8)
            verify(part, expected)
            if start == 0:
                tensor = part if len(part) == total else np.empty(total, np.uint8)
            if len(part) != total:
                tensor[start : start + len(part)] = part
            if start + len(part) == total:
                writer.write(b"+")


def serve(announce: Callable[[int], None]) -> None:
    """Receive tensors, and answer each with one byte of metadata."""
    server = _Server("grpc://127.0.0.1:0")
    announce(server.port)
    server.serve()


def connect(port: int, *, batch_rows: int) -> Client:
    """Returns one client for all lanes. `batch_rows`: rows in a batch; 0 puts the whole tensor into one batch."""
    client = flight.connect(f"grpc://127.0.0.1:{port}")

    def open_lane() -> Lane:
        writer, answers = client.do_put(flight.FlightDescriptor.for_path("x"), _SCHEMA)

        def send(data: np.ndarray) -> None:
            rows = len(data) // ROW_BYTES
            step = batch_rows or rows
            for start in range(0, rows, step):
                end = min(start + step, rows)
                part = data[start * ROW_BYTES : end * ROW_BYTES]
                column = pa.Array.from_buffers(pa.binary(ROW_BYTES), end - start, [None, pa.py_buffer(part)])
                batch = pa.record_batch([column], schema=_SCHEMA)
                writer.write_with_metadata(batch, _HEAD.pack(checksum(part), start * ROW_BYTES, len(data)))

        return Lane(send, answers.read)

    return BlockingClient(open_lane)
