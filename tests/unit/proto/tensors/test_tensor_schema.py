"""Tensor schemas: which ones are valid, their canonical JSON, and the hash that both sides of an edge compare."""

from __future__ import annotations

import hashlib

import pytest

from omni_proto.errors import OmniProtoError, SchemaError
from omni_proto.stage.v1 import tensors_pb2
from omni_proto.tensors import (
    DTYPES,
    TensorSchema,
    TensorSpec,
    canonical_json,
    dtype_from_proto,
    schema_from_proto,
    schema_hash,
    schema_to_proto,
    tensor_prompt,
)

X = TensorSpec("x", "bfloat16", (4,), "hidden state")
IDS = TensorSpec("token_ids", "int64")


def schema(*tensors: TensorSpec, id: str = "family/edge", version: int = 1) -> TensorSchema:
    return TensorSchema(id, version, tensors or (X, IDS))


def test_canonical_json_is_pinned() -> None:
    text = (
        '{"id":"family/edge","tensors":[{"dtype":"int64","name":"token_ids","row_shape":[]},'
        '{"dtype":"bfloat16","name":"x","row_shape":[4]}],"version":1}'
    )
    assert canonical_json(schema()) == text
    assert schema_hash(schema()) == hashlib.sha256(text.encode()).hexdigest()


def test_order_and_description_do_not_matter() -> None:
    other = schema(IDS, TensorSpec("x", "bfloat16", (4,), "said otherwise"))
    assert other == schema()
    assert schema_hash(other) == schema_hash(schema())


@pytest.mark.parametrize(
    "other",
    [
        schema(id="family/other"),
        schema(version=2),
        schema(X),
        schema(TensorSpec("x", "float16", (4,)), IDS),
        schema(TensorSpec("x", "bfloat16", (5,)), IDS),
        schema(TensorSpec("x", "bfloat16", (4, 1)), IDS),
        schema(TensorSpec("y", "bfloat16", (4,)), IDS),
    ],
    ids=["id", "version", "tensor missing", "dtype", "size", "dimensions", "name"],
)
def test_hash_sees_every_other_difference(other: TensorSchema) -> None:
    assert schema_hash(other) != schema_hash(schema())


def test_proto_round_trip_keeps_descriptions() -> None:
    back = schema_from_proto(tensors_pb2.TensorSchema.FromString(schema_to_proto(schema()).SerializeToString()))
    assert back == schema()
    assert back.spec("x").description == "hidden state"


def test_every_dtype_of_the_protocol_is_known() -> None:
    numbers = {value.number for value in tensors_pb2.DType.DESCRIPTOR.values} - {tensors_pb2.DTYPE_UNSPECIFIED}
    assert {int(info.proto) for info in DTYPES.values()} == numbers
    for info in DTYPES.values():
        assert dtype_from_proto(info.proto) is info
        assert tensors_pb2.DType.Name(info.proto) == f"DTYPE_{info.name.upper()}"


@pytest.mark.parametrize(
    ("name", "dtype", "row_shape"),
    [
        ("", "int8", ()),
        ("X", "int8", ()),
        ("a b", "int8", ()),
        ("a\n", "int8", ()),
        ("a" * 65, "int8", ()),
        ("x", "complex64", ()),
        ("x", "int8", (0,)),
        ("x", "int8", (-1,)),
        ("x", "int8", (1,) * 9),
        ("x", "float64", (2**20,)),
        ("x", "int8", (2**62, 2**62)),
    ],
)
def test_bad_specs_are_refused(name: str, dtype: str, row_shape: tuple[int, ...]) -> None:
    with pytest.raises(SchemaError):
        TensorSpec(name, dtype, row_shape)


@pytest.mark.parametrize(
    ("id", "version", "tensors"),
    [
        ("noslash", 1, (X,)),
        ("A/b", 1, (X,)),
        ("a/b", 0, (X,)),
        ("a/b", 2**32, (X,)),
        ("a/b", 1, ()),
        ("a/b", 1, (X, X)),
        ("a/b", 1, tuple(TensorSpec(f"t{i}", "int8") for i in range(65))),
    ],
)
def test_bad_schemas_are_refused(id: str, version: int, tensors: tuple[TensorSpec, ...]) -> None:
    with pytest.raises(SchemaError):
        TensorSchema(id, version, tensors)


@pytest.mark.parametrize("number", [0, 11, 4096])
def test_unknown_dtype_numbers_are_refused(number: int) -> None:
    with pytest.raises(SchemaError, match=str(number)):
        dtype_from_proto(number)


def test_prompt_announces_every_tensor() -> None:
    prompt = tensor_prompt(schema(), "thinker", {"x": 7, "token_ids": 7}.items())
    assert prompt.source_stage == "thinker"
    assert [(h.name, h.max_rows, list(h.row_shape)) for h in prompt.tensors] == [("token_ids", 7, []), ("x", 7, [4])]
    with pytest.raises(SchemaError):
        tensor_prompt(schema(), "thinker", [("x", 7)])
    with pytest.raises(SchemaError):
        tensor_prompt(schema(), "thinker", [("x", -1), ("token_ids", 1)])


def test_unknown_names_list_the_known() -> None:
    with pytest.raises(SchemaError, match="token_ids, x"):
        schema().spec("z")


def test_errors_have_one_root() -> None:
    assert issubclass(SchemaError, OmniProtoError)
