"""The packed form of worker outputs: bit-exact round trips, and a named error for anything damaged."""

from __future__ import annotations

import pytest
import torch

from omni_stage.errors import CorruptTensorError, InvalidTensorError
from omni_stage.vllm_adapter.wiring.packing import encode_output, pack_error, pack_tensors, unpack

TENSORS = {
    "float32 matrix": torch.arange(12, dtype=torch.float32).reshape(3, 4),
    "bfloat16 rows": torch.randn(5, 3).bfloat16(),
    "float16": torch.randn(2, 2, 2).half(),
    "float64 scalar": torch.tensor(1.5, dtype=torch.float64),
    "int64 ids": torch.tensor([-1, 2**62]),
    "int8": torch.tensor([-128, 127], dtype=torch.int8),
    "bool": torch.tensor([True, False, True]),
    "uint8": torch.arange(7, dtype=torch.uint8),
    "no rows": torch.empty(0, 4),
    "not contiguous": torch.arange(12, dtype=torch.int32).reshape(3, 4).t(),
}


@pytest.mark.parametrize("name", TENSORS)
def test_one_tensor_comes_back_bit_for_bit(name: str) -> None:
    result = unpack(pack_tensors({name: TENSORS[name]}), "rows")
    assert result.error is None
    assert list(result.tensors) == [name]
    assert result.tensors[name].dtype == TENSORS[name].dtype
    assert torch.equal(result.tensors[name], TENSORS[name])


def test_many_tensors_keep_their_order_and_own_their_memory() -> None:
    packed = pack_tensors(TENSORS)
    result = unpack(packed, "rows").tensors
    packed.zero_()
    assert list(result) == list(TENSORS)
    assert all(torch.equal(result[name], TENSORS[name]) for name in TENSORS)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int64])
def test_parts_of_a_tensor_become_one(dtype: torch.dtype) -> None:
    whole = torch.arange(21).reshape(7, 3).to(dtype)
    parts = [whole[:2], whole[2:2], whole[2:]]
    packed = pack_tensors({"rows": parts, "other": torch.tensor([True])})
    assert torch.equal(packed, pack_tensors({"rows": whole, "other": torch.tensor([True])}))


def test_a_packed_tensor_is_read_at_any_storage_offset() -> None:
    packed = pack_tensors(TENSORS)
    shifted = torch.cat([torch.zeros(3, dtype=torch.uint8), packed])[3:]
    assert torch.equal(unpack(shifted, "rows").tensors["float64 scalar"], TENSORS["float64 scalar"])


def test_an_error_comes_back_with_its_kind_and_a_bounded_message() -> None:
    result = unpack(pack_error("ValueError", "m" * 5000), "output")
    assert result.tensors == {}
    assert result.error == ("ValueError", "m" * 2048)


@pytest.mark.parametrize(
    ("tensors", "plain"),
    [
        pytest.param({"rows": torch.ones(2, 3)}, True, id="the default tensor alone travels as it is"),
        pytest.param({"rows": torch.ones(3, dtype=torch.uint8)}, False, id="bytes are packed"),
        pytest.param({"rows": torch.ones(3, 1, dtype=torch.uint8)}, True, id="a byte matrix is no packed tensor"),
        pytest.param({"other": torch.ones(2)}, False, id="another name is packed"),
        pytest.param({"rows": torch.ones(2), "b": torch.ones(1)}, False, id="two tensors are packed"),
    ],
)
def test_encode_output_packs_only_where_needed(tensors: dict[str, torch.Tensor], plain: bool) -> None:
    encoded = encode_output(tensors, "rows")
    assert (encoded.shape == tensors[next(iter(tensors))].shape and encoded.dtype != torch.uint8) == plain or (
        plain and encoded.dim() > 1
    )
    result = unpack(encoded, "rows").tensors
    assert all(torch.equal(result[name], tensor) for name, tensor in tensors.items())


def test_bytes_that_look_packed_are_not_mistaken() -> None:
    trap = pack_error("Trap", "this is a model's output, not an error")
    result = unpack(encode_output({"output": trap}, "output"), "output")
    assert result.error is None
    assert torch.equal(result.tensors["output"], trap)


@pytest.mark.parametrize("plain", [torch.empty(0), torch.empty(0, dtype=torch.uint8), torch.arange(9).to(torch.uint8)])
def test_a_plain_tensor_gets_the_default_name(plain: torch.Tensor) -> None:
    assert torch.equal(unpack(plain, "output").tensors["output"], plain)


def _damaged(change: str) -> torch.Tensor:
    packed = pack_tensors({"a": torch.arange(4.0), "b": torch.arange(3)})
    if change == "cut to its magic":
        return packed[:8]
    if change == "cut in the header":
        return packed[:20]
    if change == "cut in a tensor":
        return packed[:-1]
    if change == "bytes behind":
        return torch.cat([packed, packed[:1]])
    if change == "header length beyond the bytes":
        packed[8:12] = 255
    elif change == "header is no msgpack":
        packed[12:20] = 0xC1
    else:  # changes the header's content but not its length
        old, new = {
            "unknown dtype": (b"float32", b"float99"),
            "name twice": (b"\xa1b", b"\xa1a"),
            "huge shape": (b"\x91\x04", b"\x91\x7f"),
            "negative shape": (b"\x91\x04", b"\x91\xff"),
            "unknown field": (b"\xa5dtype", b"\xa5dtypo"),
        }[change]
        raw = bytes(packed.tolist()).replace(old, new)
        return torch.frombuffer(bytearray(raw), dtype=torch.uint8)
    return packed


@pytest.mark.parametrize(
    "change",
    [
        "cut to its magic",
        "cut in the header",
        "cut in a tensor",
        "bytes behind",
        "header length beyond the bytes",
        "header is no msgpack",
        "unknown dtype",
        "name twice",
        "huge shape",
        "negative shape",
        "unknown field",
    ],
)
def test_damage_is_a_named_error(change: str) -> None:
    with pytest.raises(CorruptTensorError):
        unpack(_damaged(change), "rows")


@pytest.mark.parametrize(
    "tensors",
    [
        pytest.param({"a": torch.ones(2, dtype=torch.complex64)}, id="a dtype that is not carried"),
        pytest.param({"": torch.ones(2)}, id="no name"),
        pytest.param({"n" * (1 << 20): torch.ones(1)}, id="a header beyond the limit"),
    ],
)
def test_what_cannot_be_packed_is_refused(tensors: dict[str, torch.Tensor]) -> None:
    with pytest.raises(InvalidTensorError):
        pack_tensors(tensors)


def test_a_plain_tensor_of_a_dtype_that_is_not_carried_is_refused() -> None:
    with pytest.raises(InvalidTensorError):
        encode_output({"rows": torch.ones(2, dtype=torch.complex64)}, "rows")
