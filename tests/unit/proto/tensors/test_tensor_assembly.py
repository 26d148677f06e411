"""Reassembly: what is sent arrives bit for bit, and every damage is a named error of the right kind."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest

from omni_proto.errors import (
    ChecksumError,
    ChunkAfterLastError,
    ChunkLengthError,
    DuplicateChunkError,
    EmptyChunkError,
    InvalidBoolError,
    MissingRowsError,
    NonFiniteTensorError,
    OutOfOrderChunkError,
    OverlappingChunkError,
    OversizedTensorError,
    TensorError,
    TensorErrorKind,
    UnknownTensorError,
    WireError,
    WrongHeaderError,
)
from omni_proto.stage.v1.tensors_pb2 import DTYPE_FLOAT32, DTYPE_UNSPECIFIED, TensorHeader
from omni_proto.tensors import (
    DTYPES,
    EdgeAssembler,
    TensorAssembler,
    TensorChunkView,
    TensorSchema,
    TensorSpec,
    assembly,
    bfloat16_to_float32,
    crc32c,
    decode_generate_request,
    encode_rows,
    float32_to_bfloat16,
    tensor_prompt,
)

I16 = TensorSpec("x", "int16", (2,))


def chunk(offset: int, values: list[int], *, last: bool = False, name: str = "x") -> TensorChunkView:
    """Returns the rows of int16 [2], each filled with one value."""
    data = np.repeat(np.array(values, dtype="<i2"), 2).tobytes()
    return TensorChunkView(name, offset, len(values), crc32c(data), last, memoryview(data))


def tensor_of(spec: TensorSpec, rows: int, seed: int) -> bytes:
    rng = np.random.default_rng(seed)
    size = rows * spec.row_elements
    if spec.dtype == "bfloat16":
        return float32_to_bfloat16(rng.standard_normal(size, dtype=np.float32)).tobytes()
    if spec.dtype == "bool":
        return rng.integers(0, 2, size, dtype=np.uint8).tobytes()
    info = DTYPES[spec.dtype]
    if info.is_float:
        return rng.standard_normal(size).astype(info.numpy_name).tobytes()
    limits = np.iinfo(info.numpy_name)
    return rng.integers(limits.min, limits.max, size, dtype=info.numpy_name, endpoint=True).tobytes()


@pytest.mark.parametrize("row_shape", [(), (3,), (2, 3, 2)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
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
    assert tensor.to_float32().dtype == np.float32


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
        raise OversizedTensorError("x", f"{size} bytes are too many today")

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
    assert np.array_equal(received.to_float32(), source.float().numpy())


def test_bfloat16_conversions_are_those_of_torch() -> None:
    torch = pytest.importorskip("torch")
    values = torch.cat([torch.randn(1000), torch.tensor([0.0, -0.0, torch.inf, -torch.inf, 1e-40, 3.39e38])])
    bits = values.to(torch.bfloat16).view(torch.uint16).numpy()
    assert np.array_equal(float32_to_bfloat16(values.numpy()), bits)
    assert np.array_equal(bfloat16_to_float32(bits), values.to(torch.bfloat16).float().numpy())
    assert np.isnan(bfloat16_to_float32(float32_to_bfloat16(np.array([np.nan], np.float32))))[0]


NAMED = {
    "out of order": ([chunk(0, [1]), chunk(2, [3])], OutOfOrderChunkError, TensorErrorKind.CORRUPT),
    "first chunk missing": ([chunk(1, [2], last=True)], OutOfOrderChunkError, TensorErrorKind.CORRUPT),
    "duplicate": ([chunk(0, [1]), chunk(0, [1])], DuplicateChunkError, TensorErrorKind.CORRUPT),
    "overlap": ([chunk(0, [1, 2]), chunk(1, [2, 3])], OverlappingChunkError, TensorErrorKind.CORRUPT),
    "missing end": ([chunk(0, [1])], MissingRowsError, TensorErrorKind.CORRUPT),
    "nothing": ([], MissingRowsError, TensorErrorKind.CORRUPT),
    "after last": ([chunk(0, [1], last=True), chunk(1, [2], last=True)], ChunkAfterLastError, TensorErrorKind.CORRUPT),
    "last again": ([chunk(0, [], last=True), chunk(0, [], last=True)], ChunkAfterLastError, TensorErrorKind.CORRUPT),
    "wrong crc": ([dataclasses.replace(chunk(0, [1]), crc32c=1)], ChecksumError, TensorErrorKind.CORRUPT),
    "no crc": ([dataclasses.replace(chunk(0, [1]), crc32c=0)], ChecksumError, TensorErrorKind.CORRUPT),
    "more data": ([dataclasses.replace(chunk(0, [1, 2]), rows=1)], ChunkLengthError, TensorErrorKind.CORRUPT),
    "less data": ([dataclasses.replace(chunk(0, [1]), rows=2)], ChunkLengthError, TensorErrorKind.CORRUPT),
    "half a row": (
        [dataclasses.replace(chunk(0, [1]), data=memoryview(b"abc"), crc32c=crc32c(b"abc"))],
        ChunkLengthError,
        TensorErrorKind.CORRUPT,
    ),
    "huge row count": (
        [TensorChunkView("x", 0, 2**32 - 1, 0, True, memoryview(b""))],
        ChunkLengthError,
        TensorErrorKind.CORRUPT,
    ),
    "oversized": ([chunk(0, [1, 2, 3, 4]), chunk(4, [5])], OversizedTensorError, TensorErrorKind.INVALID),
    "no rows, not last": ([chunk(0, [1]), chunk(1, [])], EmptyChunkError, TensorErrorKind.INVALID),
    "unknown": ([chunk(0, [1], name="y")], UnknownTensorError, TensorErrorKind.INVALID),
}


@pytest.mark.parametrize(("chunks", "error", "kind"), NAMED.values(), ids=NAMED.keys())
def test_named_errors(chunks: list[TensorChunkView], error: type[TensorError], kind: TensorErrorKind) -> None:
    schema = TensorSchema("a/b", 1, (I16,))
    edge = EdgeAssembler(schema, tensor_prompt(schema, "up", [("x", 4)]).tensors)
    with pytest.raises(error) as caught:
        receive(edge, chunks)
    assert type(caught.value) is error
    assert caught.value.kind is kind
    assert caught.value.is_corrupt is (kind is TensorErrorKind.CORRUPT)
    assert caught.value.tensor in ("x", "y")


def receive(edge: EdgeAssembler, chunks: list[TensorChunkView]) -> dict[str, bytes]:
    for item in chunks:
        edge.add(item)
    return {name: bytes(tensor.data) for name, tensor in edge.finish().items()}


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
    assert caught.value.kind is TensorErrorKind.NON_FINITE
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
    with pytest.raises(InvalidBoolError):
        TensorAssembler(spec, 3).add(view)


SCHEMA = TensorSchema(
    "qwen2_5_omni/thinker2talker",
    1,
    (TensorSpec("x", "float32", (4,)), TensorSpec("token_ids", "int64"), TensorSpec("positions", "int64", (3,))),
)


def headers(**max_rows: int) -> list[TensorHeader]:
    return list(
        tensor_prompt(SCHEMA, "thinker", {name: max_rows.get(name, 10) for name in SCHEMA.names}.items()).tensors
    )


def changed(index: int, **values: object) -> list[TensorHeader]:
    result = headers()
    copy = TensorHeader()
    copy.CopyFrom(result[index])
    for name, value in values.items():
        if name == "row_shape":
            del copy.row_shape[:]
            copy.row_shape.extend(value)  # type: ignore[arg-type]
        else:
            setattr(copy, name, value)
    result[index] = copy
    return result


WRONG_HEADERS = {
    "missing": (headers()[1:], WrongHeaderError),
    "none": ([], WrongHeaderError),
    "twice": ([*headers(), headers()[0]], WrongHeaderError),
    "unknown": (changed(0, name="later"), WrongHeaderError),
    "dtype": (changed(0, dtype=DTYPE_FLOAT32), WrongHeaderError),
    "dtype unset": (changed(0, dtype=DTYPE_UNSPECIFIED), WrongHeaderError),
    "dtype of a newer protocol": (changed(0, dtype=77), WrongHeaderError),
    "row shape": (changed(0, row_shape=[4]), WrongHeaderError),
    "dimensions": (changed(0, row_shape=[3, 1]), WrongHeaderError),
    "too many rows": (headers(x=101), OversizedTensorError),
    "rows of 64 bits": (headers(x=2**64 - 1), OversizedTensorError),
    "too many bytes": (headers(x=100, token_ids=100, positions=100), OversizedTensorError),
}


@pytest.mark.parametrize(("given", "error"), WRONG_HEADERS.values(), ids=WRONG_HEADERS.keys())
def test_headers_must_be_those_of_the_schema(given: list[TensorHeader], error: type[TensorError]) -> None:
    with pytest.raises(error) as caught:
        EdgeAssembler(SCHEMA, given, max_rows=100, max_bytes=2000)
    assert caught.value.kind is TensorErrorKind.INVALID


def test_huge_announcements_reserve_nothing_yet() -> None:
    edge = EdgeAssembler(SCHEMA, headers(x=2**62))
    assert edge.max_bytes > 2**60
    assert edge.received_bytes == 0


def test_an_edge_takes_interleaved_tensors_in_any_order() -> None:
    data = {spec.name: tensor_of(spec, 10, seed=3) for spec in SCHEMA.tensors}
    streams = [list(encode_rows(SCHEMA.spec(name), data[name], chunk_bytes=40)) for name in SCHEMA.names]
    rng = random.Random(1)
    edge = EdgeAssembler(SCHEMA, headers(), max_rows=10, max_bytes=10_000)
    while any(streams):
        stream = rng.choice([s for s in streams if s])
        assert not edge.complete
        view = decode_generate_request(stream.pop(0))
        assert isinstance(view, TensorChunkView)
        edge.add(view)
    assert edge.complete
    assert edge.received_bytes == sum(map(len, data.values()))
    assert edge.rows == dict.fromkeys(SCHEMA.names, 10)
    assert {name: bytes(tensor.data) for name, tensor in edge.finish().items()} == data


def damage(messages: list[bytes], rng: random.Random) -> list[bytes]:
    """Returns one to three random faults of a transport or a peer."""
    result = list(messages)
    for _ in range(rng.randint(1, 3)):
        if not result:
            break
        at = rng.randrange(len(result))
        match rng.choice(["drop", "duplicate", "swap", "flip", "cut", "zero", "grow"]):
            case "drop":
                del result[at]
            case "duplicate":
                result.insert(rng.randrange(len(result) + 1), result[at])
            case "swap":
                other = rng.randrange(len(result))
                result[at], result[other] = result[other], result[at]
            case "flip":
                result[at] = flip(result[at], 1 << rng.randrange(8), rng)
            case "zero":
                result[at] = flip(result[at], 0xFF, rng)
            case "cut":
                result[at] = result[at][: rng.randrange(len(result[at]))]
            case "grow":
                result[at] += rng.randbytes(rng.randint(1, 4))
    return result


def flip(message: bytes, bits: int, rng: random.Random) -> bytes:
    if not message:
        return message
    place = rng.randrange(len(message))
    return message[:place] + bytes((message[place] ^ bits,)) + message[place + 1 :]


def test_no_damage_is_ever_accepted() -> None:
    """3000 damaged transfers: each is a named error, or what arrives is exactly what was sent."""
    data = {spec.name: tensor_of(spec, 10, seed=5) for spec in SCHEMA.tensors}
    clean = [bytes(m) for spec in SCHEMA.tensors for m in encode_rows(spec, data[spec.name], chunk_bytes=48)]
    rng = random.Random(20)
    outcomes: dict[str, int] = {}
    for _ in range(3000):
        edge = EdgeAssembler(SCHEMA, headers(), max_rows=10)
        try:
            views = [decode_generate_request(message) for message in damage(clean, rng)]
            received = receive(edge, [view for view in views if isinstance(view, TensorChunkView)])
        except (TensorError, WireError) as error:
            outcomes[type(error).__name__] = outcomes.get(type(error).__name__, 0) + 1
        else:
            # Harmless: two tensors' chunks changed places, or a fault undid another or hit what protobuf ignores.
            assert received == data
            outcomes["harmless"] = outcomes.get("harmless", 0) + 1
    assert outcomes.pop("harmless", 0) < 600
    assert sum(outcomes.values()) > 2000
    assert {"ChecksumError", "OutOfOrderChunkError", "DuplicateChunkError", "MissingRowsError", "WireError"} <= set(
        outcomes
    )
