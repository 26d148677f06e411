"""Compares the tensor codec with protobuf message objects: from rows to a reassembled tensor, without a network.

The sides are our codec, message objects in chunks of about the size that our codec uses, and one message with the whole
tensor. All sides check CRC-32C.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import google_crc32c
import numpy as np

from benchmarks.harness.interleave import median_ratio, time_rounds
from benchmarks.harness.report import Options, Report, Row
from benchmarks.harness.verdict import Ratio
from omni_proto.stage.v1.stage_service_pb2 import GenerateRequest
from omni_proto.stage.v1.tensors_pb2 import TensorChunk
from omni_proto.tensors import (
    TensorAssembler,
    TensorChunkView,
    TensorSpec,
    decode_generate_request,
    encode_rows,
    serialize_generate_request,
)
from omni_stage.process.startup import tune_malloc

ROW = 3584
SIZES_MB = (1, 8, 32)
FLOOR = 1.2
"""Minimum speed of our codec, relative to message objects in chunks. A codec that gains less is not worth its code."""
TOLERANCE = 0.25
TABLE = "encode, decode, check, reassemble"
ROUNDS = 15
OWN, CHUNKED = "own codec", "protobuf in chunks"


def measure(options: Options) -> Report:
    """Returns a row for each size and side, with GB/s and the speed relative to message objects in chunks."""
    tune_malloc()  # as the stage server does at start-up; it makes all sides faster
    rows: list[Row] = []
    for megabytes in SIZES_MB:
        count = megabytes * 1_000_000 // (ROW * 2)
        spec = TensorSpec("x", "float16", (ROW,))
        data = np.random.default_rng(0).standard_normal((count, ROW)).astype(np.float16)
        sides = {
            OWN: lambda spec=spec, data=data: run_own(spec, data),
            CHUNKED: lambda data=data: run_protobuf(data, 1_000_000),
            "protobuf message": lambda data=data: run_protobuf(data, data.nbytes),
        }
        seconds = time_rounds(sides, options.rounds or ROUNDS)
        rows += [
            {
                "mb": megabytes,
                "side": name,
                "gb_per_s": round(data.nbytes / statistics.median(taken) / 1e9, 2),
                "ratio_to_chunked_protobuf": round(median_ratio(seconds[CHUNKED], taken), 2),
            }
            for name, taken in seconds.items()
        ]
    return Report({TABLE: rows}, find_ratios(rows))


def find_ratios(rows: Sequence[Row]) -> list[Ratio]:
    """Returns the speed of our codec relative to message objects in chunks, for each size."""
    return [
        Ratio(f"x {CHUNKED}, {row['mb']} MB", row["ratio_to_chunked_protobuf"], at_least=FLOOR, tolerance=TOLERANCE)
        for row in rows
        if row["side"] == OWN
    ]


def run_own(spec: TensorSpec, data: np.ndarray) -> None:
    """Encode, decode, check and reassemble a tensor, float16 [rows, ROW], with our codec."""
    assembler = TensorAssembler(spec, len(data), check_finite=False)
    for chunk in encode_rows(spec, memoryview(data).cast("B")):
        view = decode_generate_request(serialize_generate_request(chunk))
        if not isinstance(view, TensorChunkView):
            raise TypeError("the codec made no tensor chunk")
        assembler.add(view)
    assembler.finish()


def run_protobuf(data: np.ndarray, chunk_bytes: int) -> None:
    """Do the same with protobuf messages of at most chunk_bytes each. Raises ValueError if a checksum is wrong."""
    whole = memoryview(data).cast("B")
    received = bytearray()
    row_bytes = data.shape[1] * 2
    step = chunk_bytes // row_bytes * row_bytes
    for start in range(0, len(whole), step):
        part = bytes(whole[start : start + step])
        chunk = TensorChunk(name="x", row_offset=start // row_bytes, crc32c=google_crc32c.value(part), data=part)
        message = GenerateRequest.FromString(GenerateRequest(tensor=chunk).SerializeToString())
        if google_crc32c.value(message.tensor.data) != message.tensor.crc32c:
            raise ValueError("checksum")
        received += message.tensor.data
