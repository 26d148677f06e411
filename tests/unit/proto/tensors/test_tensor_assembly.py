"""Reassembly: tensors arrive bit for bit, and any damage raises a named error of the right kind."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from omni_proto.errors import (
    CorruptTensorError,
    InvalidTensorError,
    NonFiniteTensorError,
    OversizedTensorError,
    TensorError,
)
from omni_proto.tensors import (
    DTYPES,
    EdgeAssembler,
    TensorAssembler,
    TensorChunkView,
    TensorSchema,
    TensorSpec,
    assembly,
    crc32c,
    decode_generate_request,
    encode_rows,
    tensor_prompt,
)
from support.stages.tensor_chunks import I16, chunk, receive, tensor_of
from support.tables import each_row


@each_row("row_shape", [(), (3,), (2, 3, 2)], ids=str)
@each_row("dtype", DTYPES)
def test_every_dtype_arrives_bit_for_bit(dtype: str, row_shape: tuple[int, ...]) -> None:
    spec = TensorSpec("x", dtype, row_shape)
    data = tensor_of(spec, 37, seed=1)
    assembler = TensorAssembler(spec, 50)
    for message in encode_rows(spec, data, chunk_bytes=64):
        view = decode_generate_request(message)
        assert isinstance(view, TensorChunkView)
        assembler.add(view)
    tensor = assembler.finish()
    assert tensor.data == data
    assert tensor.shape == (37, *row_shape)
    assert tensor.to_numpy().tobytes() == data


@pytest.mark.parametrize("rows", [0, 1, 2, 1000, 200_000])
def test_growth_keeps_every_row_and_never_passes_the_maximum(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assembly, "FIRST_CAPACITY_BYTES", 1 << 20)
    spec = TensorSpec("x", "int64", (2,))
    reserved: list[int] = []
    assembler = TensorAssembler(spec, 250_000, reserve=reserved.append)
    data = np.arange(rows * 2, dtype="<i8").tobytes()
    for message in encode_rows(spec, data, chunk_bytes=100_000):
        view = decode_generate_request(message)
        assert isinstance(view, TensorChunkView)
        assembler.add(view)
    assert assembler.finish().data == data
    assert sum(reserved) <= assembler.max_bytes == 250_000 * 16
    assert sum(reserved) >= len(data)
    assert len(reserved) < 4


def test_a_refused_reservation_stops_the_chunk() -> None:
    def refuse(size: int) -> None:
        raise OversizedTensorError.of("x", f"{size} bytes are too many today")

    assembler = TensorAssembler(I16, 10, reserve=refuse)
    with pytest.raises(OversizedTensorError, match="today"):
        assembler.add(chunk(0, [1]))
    assert assembler.rows == 0


def test_the_result_is_writable_and_fits_torch() -> None:
    torch = pytest.importorskip("torch")
    spec = TensorSpec("x", "bfloat16", (3,))
    source = torch.randn(5, 3).to(torch.bfloat16)
    assembler = TensorAssembler(spec, 5)
    for message in encode_rows(spec, source.view(torch.uint8).numpy()):
        view = decode_generate_request(message)
        assert isinstance(view, TensorChunkView)
        assembler.add(view)
    received = assembler.finish()
    assert not received.data.readonly
    tensor = torch.frombuffer(received.data, dtype=torch.bfloat16).reshape(received.shape)
    assert torch.equal(tensor, source)


REFUSED = {
    "out of order": ([chunk(0, [1]), chunk(2, [3])], CorruptTensorError, "row 2 came when row 1 was due"),
    "first chunk missing": ([chunk(1, [2], last=True)], CorruptTensorError, "row 1 came when row 0 was due"),
    "duplicate": ([chunk(0, [1]), chunk(0, [1])], CorruptTensorError, "rows 0 to 1 came again; row 1 was due"),
    "overlap": ([chunk(0, [1, 2]), chunk(1, [2, 3])], CorruptTensorError, "rows 1 to 2 came again, with new ones"),
    "missing end": ([chunk(0, [1])], CorruptTensorError, "ended after 1 rows, without a last chunk"),
    "nothing": ([], CorruptTensorError, "ended after 0 rows, without a last chunk"),
    "after last": ([chunk(0, [1], last=True), chunk(1, [2], last=True)], CorruptTensorError, "came after the last one"),
    "last again": ([chunk(0, [], last=True), chunk(0, [], last=True)], CorruptTensorError, "came after the last one"),
    "wrong crc": ([dataclasses.replace(chunk(0, [1]), crc32c=1)], CorruptTensorError, "rows 0 to 1 is wrong"),
    "no crc": ([dataclasses.replace(chunk(0, [1]), crc32c=0)], CorruptTensorError, "the sender set no checksum"),
    "more data": ([dataclasses.replace(chunk(0, [1, 2]), rows=1)], CorruptTensorError, "of data for 1 rows"),
    "less data": ([dataclasses.replace(chunk(0, [1]), rows=2)], CorruptTensorError, "of data for 2 rows"),
    "half a row": (
        [dataclasses.replace(chunk(0, [1]), data=memoryview(b"abc"), crc32c=crc32c(b"abc"))],
        CorruptTensorError,
        "3 bytes of data for 1 rows",
    ),
    "huge row count": (
        [TensorChunkView("x", 0, 2**32 - 1, 0, True, memoryview(b""))],
        CorruptTensorError,
        "0 bytes of data for 4294967295 rows",
    ),
    "oversized": ([chunk(0, [1, 2, 3, 4]), chunk(4, [5])], OversizedTensorError, "beyond the 4 rows announced"),
    "no rows, not last": ([chunk(0, [1]), chunk(1, [])], InvalidTensorError, "without rows must be the last one"),
    "unknown": ([chunk(0, [1], name="y")], InvalidTensorError, "no header announced it; known are x"),
}


@pytest.mark.parametrize(("chunks", "error", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_each_fault_of_a_transfer_has_its_error(
    chunks: list[TensorChunkView], error: type[TensorError], message: str
) -> None:
    schema = TensorSchema("a/b", 1, (I16,))
    edge = EdgeAssembler(schema, tensor_prompt(schema, "up", [("x", 4)]).tensors)
    with pytest.raises(error, match=message) as caught:
        receive(edge, chunks)
    assert type(caught.value) is error
    assert caught.value.details.field in ("tensor[x]", "tensor[y]")


def test_a_refused_chunk_changes_nothing() -> None:
    assembler = TensorAssembler(I16, 4)
    assembler.add(chunk(0, [1]))
    for bad in (chunk(0, [9]), chunk(2, [9]), dataclasses.replace(chunk(1, [9]), crc32c=5), chunk(1, [9] * 4)):
        with pytest.raises(TensorError):
            assembler.add(bad)
    assembler.add(chunk(1, [2], last=True))
    assert assembler.finish().to_numpy().tolist() == [[1, 1], [2, 2]]


NON_FINITE = [("bfloat16", v) for v in (0x7F80, 0xFF80, 0x7FC0, 0xFFFF)] + [
    (dtype, value) for dtype in ("float16", "float32", "float64") for value in (np.inf, -np.inf, np.nan)
]


@pytest.mark.parametrize(("dtype", "value"), NON_FINITE)
def test_one_non_finite_value_is_refused(dtype: str, value: float) -> None:
    spec = TensorSpec("x", dtype, (5,))
    rows = np.zeros((9, 5), dtype=DTYPES[dtype].numpy_name)
    rows[7, 3] = value
    messages = [decode_generate_request(m) for m in encode_rows(spec, rows)]
    view = messages[0]
    assert isinstance(view, TensorChunkView)
    with pytest.raises(NonFiniteTensorError) as caught:
        TensorAssembler(spec, 9).add(view)
    assert caught.value.reason == "NON_FINITE_TENSOR"
    lax = TensorAssembler(spec, 9, check_finite=False)
    lax.add(view)
    assert lax.finish().data == rows.tobytes()


def test_largest_finite_values_pass() -> None:
    for dtype, largest in (
        ("bfloat16", 0x7F7F),
        ("float16", 65504.0),
        ("float32", 3.4028235e38),
        ("float64", 1.79e308),
    ):
        spec = TensorSpec("x", dtype)
        data = np.array([largest], dtype=DTYPES[dtype].numpy_name)
        view = decode_generate_request(next(encode_rows(spec, data)))
        assert isinstance(view, TensorChunkView)
        assembler = TensorAssembler(spec, 1)
        assembler.add(view)
        assert assembler.complete


def test_bools_are_0_or_1() -> None:
    spec = TensorSpec("x", "bool")
    view = decode_generate_request(next(encode_rows(spec, b"\0\1\2")))
    assert isinstance(view, TensorChunkView)
    with pytest.raises(InvalidTensorError):
        TensorAssembler(spec, 3).add(view)
