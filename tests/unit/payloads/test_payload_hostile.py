"""Hostile payloads are refused with a named error, whatever their bytes, without allocating the size they claim."""

from __future__ import annotations

import contextlib
import random
import struct
import tracemalloc

import msgspec
import pytest
import torch
from hypothesis import given, settings, strategies as st

from omni_proto.tensors import crc32c
from omni_stage.errors import CorruptTensorError, InvalidTensorError, NonFiniteTensorError, OmniStageError
from omni_stage.payloads import (
    AdditionalInformationEntry,
    AdditionalInformationPayload,
    PayloadLimits,
    PromptEmbedsPayload,
)
from omni_stage.payloads.checks import count_bytes
from support.tables import each_row

DATA = struct.pack("<6f", *range(6))


def entry(**changes: object) -> dict[str, object]:
    """Returns a good tensor entry as plain data, with changes; None removes a field."""
    good = {"tensor_data": DATA, "tensor_shape": [2, 3], "tensor_dtype": "float32", "tensor_checksum": crc32c(DATA)}
    return {name: value for name, value in (good | changes).items() if value is not None}


def pack(entries: object) -> bytes:
    return msgspec.msgpack.encode({"entries": entries})


def test_the_good_entry_is_good():
    payload = AdditionalInformationPayload.from_bytes(pack({"x": entry()}))
    assert payload.tensor("x").tolist() == [[0, 1, 2], [3, 4, 5]]


HUGE = [1 << 40, 1 << 40]
INVALID = {
    # name: (entries, text in the message)
    "shape larger than data": ({"x": entry(tensor_shape=[2, 4])}, "24 bytes of data"),
    "shape smaller than data": ({"x": entry(tensor_shape=[2, 2])}, "24 bytes of data"),
    "another dtype": ({"x": entry(tensor_dtype="float64")}, "24 bytes of data"),
    "unknown dtype": ({"x": entry(tensor_dtype="float33")}, "dtype must be one of"),
    "dtype that is an attribute of torch": ({"x": entry(tensor_dtype="load")}, "dtype must be one of"),
    "complex dtype": ({"x": entry(tensor_dtype="complex64")}, "dtype must be one of"),
    "zero dimension": ({"x": entry(tensor_shape=[0, 3], tensor_data=b"")}, "at least 1"),
    "negative dimensions": ({"x": entry(tensor_shape=[-2, -3])}, "at least 1"),
    "product that overflows 64 bits": ({"x": entry(tensor_shape=[1 << 32, 1 << 32])}, "bytes of data"),
    "product that wraps to the size": ({"x": entry(tensor_shape=[2, 3, (1 << 62) + 1])}, "bytes of data"),
    "product of many": ({"x": entry(tensor_shape=[1 << 40] * 60)}, "bytes of data"),
    "dimension beyond 64 bits": ({"x": entry(tensor_shape=[1 << 63, 2])}, "bytes of data"),
    "fraction as dimension": ({"x": entry(tensor_shape=[2.5, 3])}, "not a payload"),
    "text as dimension": ({"x": entry(tensor_shape=["2", 3])}, "not a payload"),
    "boolean as dimension": ({"x": entry(tensor_shape=[True, 6])}, "not a payload"),
    "both forms": ({"x": entry(list_data=[1])}, "exactly one"),
    "neither form": ({"x": {}}, "exactly one"),
    "list with a shape": ({"x": {"list_data": [1], "tensor_shape": [1]}}, "a list has no"),
    "list with a checksum": ({"x": {"list_data": [1], "tensor_checksum": 1}}, "a list has no"),
    "no shape": ({"x": entry(tensor_shape=None)}, "needs tensor_shape"),
    "no dtype": ({"x": entry(tensor_dtype=None)}, "needs tensor_shape and tensor_dtype"),
    "no checksum": ({"x": entry(tensor_checksum=None)}, "needs tensor_checksum"),
    "shape alone": ({"x": {"tensor_shape": [1]}}, "exactly one"),
    "text as data": ({"x": entry(tensor_data="text")}, "not a payload"),
    "unknown field": ({"x": entry(pickle=b"cos\nsystem\n")}, "not a payload"),
    "nested list": ({"x": {"list_data": [[1]]}}, "not a payload"),
    "mapping in a list": ({"x": {"list_data": [{"a": 1}]}}, "not a payload"),
    "bytes in a list": ({"x": {"list_data": [b"a"]}}, "not a payload"),
    "list of entries": ([entry()], "not a payload"),
    "number as name": ({1: entry()}, "not a payload"),
    "empty name": ({"": entry()}, "a name must begin"),
    "name with a path": ({"../x": entry()}, "a name must begin"),
    "name with a line break": ({"x\nlevel=error": entry()}, "a name must begin"),
    "name with a trailing line break": ({"x\n": entry()}, "a name must begin"),
    "name of other letters": ({"é": entry()}, "a name must begin"),
    "long name": ({"x" * 65: entry()}, "longer than 64"),
    "too many entries": ({f"x{index}": {"list_data": []} for index in range(65)}, "at most 64"),
    "too many dimensions": ({"x": entry(tensor_shape=[2, 3, 1, 1, 1])}, "5 dimensions"),
    "long list": ({"x": {"list_data": [0] * 65537}}, "at most 65536"),
    "long text in a list": ({"x": {"list_data": ["a" * 4097]}}, "longer than 4096"),
}


@each_row("name", INVALID)
def test_invalid_payload_is_refused_by_name(name):
    entries, text = INVALID[name]
    with pytest.raises(InvalidTensorError, match=text):
        AdditionalInformationPayload.from_bytes(pack(entries))


EMBEDS = {
    "one dimension": ({"shape": [6]}, InvalidTensorError),
    "overflow": ({"shape": HUGE}, InvalidTensorError),
    "negative": ({"shape": [-2, -3]}, InvalidTensorError),
    "integers": ({"dtype": "int32"}, InvalidTensorError),
    "unknown dtype": ({"dtype": "x"}, InvalidTensorError),
    "short data": ({"data": DATA[:-1]}, InvalidTensorError),
    "changed data": ({"data": DATA[:-1] + b"\x01"}, CorruptTensorError),
    "wrong checksum": ({"checksum": 0}, CorruptTensorError),
    "negative checksum": ({"checksum": -1}, CorruptTensorError),
}


@pytest.mark.parametrize("name", EMBEDS)
def test_hostile_prompt_embeds(name):
    changes, error = EMBEDS[name]
    good = {"data": DATA, "shape": [2, 3], "dtype": "float32", "checksum": crc32c(DATA)}
    assert PromptEmbedsPayload(**good).shape == [2, 3]
    with pytest.raises(error):
        PromptEmbedsPayload(**good | changes)


def test_construction_is_checked_like_decoding():
    with pytest.raises(InvalidTensorError):
        AdditionalInformationEntry()
    with pytest.raises(InvalidTensorError):
        AdditionalInformationEntry(tensor_data=DATA, list_data=[1])
    with pytest.raises(CorruptTensorError):
        AdditionalInformationEntry(**entry(tensor_checksum=1))
    with pytest.raises(InvalidTensorError):
        PromptEmbedsPayload(data=DATA, shape=[3, 3], dtype="float32", checksum=0)


def test_every_flipped_bit_of_the_data_is_found():
    raw = AdditionalInformationPayload.from_mapping({"x": torch.arange(16.0)}).to_bytes()
    start = raw.index(torch.arange(16.0).numpy().tobytes())
    for bit in range(64 * 8):
        damaged = bytearray(raw)
        damaged[start + bit // 8] ^= 1 << (bit % 8)
        with pytest.raises(CorruptTensorError):
            AdditionalInformationPayload.from_bytes(bytes(damaged))


def test_any_cut_is_refused():
    raw = AdditionalInformationPayload.from_mapping({"x": torch.ones(4), "l": [1, "a"]}).to_bytes()
    for end in range(len(raw)):
        with pytest.raises(OmniStageError):
            AdditionalInformationPayload.from_bytes(raw[:end])
    with pytest.raises(OmniStageError):
        AdditionalInformationPayload.from_bytes(raw + b"\x00")


@pytest.mark.parametrize("raw", [b"", b"\xc1", b"\x80", b"\x90", b"\xc0", b"\x81" * 100_000, b"\x91" * 100_000])
def test_not_a_payload(raw):
    with pytest.raises(InvalidTensorError):
        AdditionalInformationPayload.from_bytes(raw)


@given(st.binary(max_size=200))
@settings(max_examples=300)
def test_random_bytes_raise_nothing_else(raw):
    with contextlib.suppress(OmniStageError):
        AdditionalInformationPayload.from_bytes(raw)


def test_random_damage_raises_nothing_else():
    good = AdditionalInformationPayload.from_mapping({"x": torch.ones(2, 3).bfloat16(), "l": [1, 2.5, "a", None]})
    raw, source = good.to_bytes(), random.Random(0)
    refused = 0
    for _ in range(3000):
        damaged = bytearray(raw)
        for _ in range(source.randint(1, 3)):
            damaged[source.randrange(len(raw))] = source.randrange(256)
        try:
            AdditionalInformationPayload.from_bytes(bytes(damaged))
        except OmniStageError:
            refused += 1
    assert refused > 2000


def test_a_lie_about_size_allocates_nothing():
    raw = pack({"x": entry(tensor_shape=HUGE)})
    tracemalloc.start()
    try:
        with pytest.raises(InvalidTensorError):
            AdditionalInformationPayload.from_bytes(raw)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_size_of_the_whole_is_checked_before_it_is_read():
    limits = PayloadLimits(max_payload_bytes=100)
    with pytest.raises(InvalidTensorError, match="101 bytes, at most 100"):
        AdditionalInformationPayload.from_bytes(b"\xc1" * 101, limits)
    with pytest.raises(InvalidTensorError, match="128 bytes, at most 100"):
        AdditionalInformationPayload.from_mapping({"a": torch.zeros(16), "b": torch.zeros(16)}, limits)


def test_messages_name_field_and_limit_and_not_the_value():
    with pytest.raises(InvalidTensorError) as caught:
        AdditionalInformationPayload.from_bytes(pack({"x": entry(tensor_dtype="CANARY-5")}))
    assert "CANARY" not in str(caught.value)
    with pytest.raises(InvalidTensorError) as caught:
        AdditionalInformationPayload.from_bytes(pack({"CANARY 5": entry()}))
    assert "CANARY" not in str(caught.value)
    with pytest.raises(InvalidTensorError) as caught:
        AdditionalInformationPayload.from_bytes(pack({"x": {"list_data": ["a" * 5000]}}))
    assert caught.value.details.field == "additional_information.x"
    assert caught.value.details.limit == "4096"


NOT_CONTENT = {
    "number": 5,
    "text": "abc",
    "bytes": b"abc",
    "none": None,
    "mapping": {"a": 1},
    "object": object(),
    "list of lists": [[1]],
    "list of bytes": [b"a"],
    "list with a large integer": [1 << 64],
    "list with a tensor": [torch.ones(1)],
}


@pytest.mark.parametrize("name", NOT_CONTENT)
def test_from_mapping_refuses_other_values(name):
    with pytest.raises(InvalidTensorError):
        AdditionalInformationPayload.from_mapping({"x": NOT_CONTENT[name]})


def test_sizes_are_python_integers():
    assert count_bytes([1 << 62, 1 << 62], "float64", field="x") == 1 << 127
    with pytest.raises(InvalidTensorError):
        count_bytes([True], "float32", field="x")
    with pytest.raises(InvalidTensorError):
        count_bytes([1.0], "float32", field="x")


def test_non_finite_values_are_found_on_the_way_in():
    data = struct.pack("<6f", 0, 1, 2, 3, 4, float("nan"))
    raw = pack({"x": entry(tensor_data=data, tensor_checksum=crc32c(data))})
    with pytest.raises(NonFiniteTensorError):
        AdditionalInformationPayload.from_bytes(raw)
