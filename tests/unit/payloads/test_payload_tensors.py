"""Payloads of tensors: round trips, all kinds of source tensors, and which tensors are refused."""

from __future__ import annotations

import tracemalloc

import msgspec
import pytest
import torch

from omni_proto.tensors import DTYPES
from omni_stage.errors import InvalidTensorError, NonFiniteTensorError
from omni_stage.payloads import (
    AdditionalInformationEntry,
    AdditionalInformationPayload,
    PayloadLimits,
    PromptEmbedsPayload,
)
from support.tables import each_row

SHAPES = {"scalar": (), "vector": (5,), "matrix": (3, 4), "cube": (2, 3, 4), "one": (1, 1)}


def make_tensor(dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 10
    return values > 0 if dtype == torch.bool else values.to(dtype)


@each_row("shape", SHAPES)
@each_row("dtype", DTYPES)
def test_round_trip_of_every_dtype_and_shape(dtype, shape):
    tensor = make_tensor(getattr(torch, dtype), SHAPES[shape])
    sent = AdditionalInformationPayload.from_mapping({"x": tensor})
    received = AdditionalInformationPayload.from_bytes(sent.to_bytes())
    assert received == sent
    result = received.tensor("x")
    assert result.dtype == tensor.dtype
    assert result.shape == tensor.shape
    assert torch.equal(result, tensor)
    assert received.nbytes == tensor.numel() * DTYPES[dtype].size


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("rows", [1, 512])
def test_prompt_embeds_round_trip(dtype, rows):
    tensor = make_tensor(getattr(torch, dtype), (rows, 768))
    sent = PromptEmbedsPayload.from_tensor(tensor)
    assert torch.equal(sent.to_tensor(), tensor)
    assert sent.nbytes == tensor.nbytes


SOURCES = {
    "transposed": lambda base: base.t(),
    "strided": lambda base: base[:, ::2],
    "expanded": lambda base: base[:1].expand(3, 4),
    "with gradient": lambda base: base.clone().requires_grad_(),
    "result of a computation": lambda base: base.clone().requires_grad_() * 2,
    "inference tensor": lambda base: _in_inference(base),
    "numpy read-only": lambda base: _read_only(base),
    "lazily negated": lambda base: torch.complex(base, base).conj().imag,
}


def _in_inference(base: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return base * 3


def _read_only(base: torch.Tensor) -> torch.Tensor:
    array = base.numpy().copy()
    view = torch.from_numpy(array)
    array.flags.writeable = False
    return view


@pytest.mark.parametrize("name", SOURCES)
def test_any_source_tensor(name):
    source = SOURCES[name](torch.arange(12.0).reshape(3, 4))
    expected = source.detach().clone()
    entry = AdditionalInformationEntry.from_tensor(source)
    assert torch.equal(entry.to_tensor(), expected)
    assert torch.equal(PromptEmbedsPayload.from_tensor(source).to_tensor(), expected)
    assert torch.equal(source.detach(), expected), "the source was changed"


@pytest.mark.filterwarnings("error")
def test_result_is_writable_and_of_its_own():
    sent = AdditionalInformationPayload.from_mapping({"x": torch.zeros(3)})
    raw = sent.to_bytes()
    received = AdditionalInformationPayload.from_bytes(raw)
    first, second = received.tensor("x"), received.tensor("x")
    first += 1
    assert second.tolist() == [0, 0, 0]
    assert received == sent
    assert received.to_bytes() == raw
    embeds = PromptEmbedsPayload.from_tensor(torch.zeros(2, 2))
    embeds.to_tensor().add_(1)
    assert embeds.to_tensor().sum() == 0


def test_device_is_a_parameter():
    entry = AdditionalInformationEntry.from_tensor(torch.ones(2))
    assert entry.to_tensor("meta").device.type == "meta"
    assert entry.to_tensor(torch.device("cpu")).device.type == "cpu"
    assert PromptEmbedsPayload.from_tensor(torch.ones(1, 2)).to_tensor("meta").device.type == "meta"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_tensors_of_a_gpu():
    tensor = torch.arange(6.0, device="cuda").reshape(2, 3)
    entry = AdditionalInformationEntry.from_tensor(tensor.t())
    assert torch.equal(entry.to_tensor("cuda"), tensor.t())


NOT_SENDABLE = {
    "complex": torch.zeros(2, dtype=torch.complex64),
    "float8": torch.zeros(2).to(torch.float8_e4m3fn),
    "sparse": torch.eye(2).to_sparse(),
    "meta": torch.empty(2, device="meta"),
    "quantized": torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
    "no values": torch.empty(0, 4),
    "five dimensions": torch.zeros(1, 1, 1, 1, 1),
    "too many bytes": torch.zeros(1025),
    "long dimension": torch.zeros(1000, dtype=torch.uint8),
}


@pytest.mark.parametrize("name", NOT_SENDABLE)
def test_what_cannot_be_sent_is_refused(name):
    limits = PayloadLimits(max_tensor_bytes=4096, max_dimension_size=999)
    with pytest.raises(InvalidTensorError) as caught:
        AdditionalInformationPayload.from_mapping({"thing": NOT_SENDABLE[name]}, limits)
    assert "thing" in str(caught.value)
    assert caught.value.details.field == "additional_information.thing"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_policy_on_values_that_are_not_finite(value, dtype):
    tensor = torch.ones(2, 3, dtype=getattr(torch, dtype))
    tensor[1, 2] = value
    allowing = PayloadLimits(allow_non_finite=True)
    with pytest.raises(NonFiniteTensorError):
        AdditionalInformationPayload.from_mapping({"x": tensor})
    payload = AdditionalInformationPayload.from_mapping({"x": tensor}, allowing)
    raw = payload.to_bytes()
    with pytest.raises(NonFiniteTensorError):
        AdditionalInformationPayload.from_bytes(raw)
    assert AdditionalInformationPayload.from_bytes(raw, allowing) == payload
    assert AdditionalInformationPayload.from_bytes(raw, PayloadLimits().already_checked()) == payload
    if dtype != "float64":
        with pytest.raises(NonFiniteTensorError):
            PromptEmbedsPayload.from_tensor(tensor)
        with pytest.raises(NonFiniteTensorError):
            PromptEmbedsPayload.from_tensor(tensor, allowing).check()


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_largest_smallest_and_odd_finite_values_pass(dtype):
    kind = getattr(torch, dtype)
    info = torch.finfo(kind)
    values = torch.tensor([info.max, info.min, info.tiny, -info.tiny, info.smallest_normal / 2, 0.0, -0.0], dtype=kind)
    assert torch.equal(AdditionalInformationEntry.from_tensor(values).to_tensor(), values)


def test_one_bad_value_at_the_end_of_a_large_tensor_is_found():
    tensor = torch.zeros(3, 1 << 18)
    AdditionalInformationEntry.from_tensor(tensor)
    tensor[-1, -1] = float("nan")
    with pytest.raises(NonFiniteTensorError):
        AdditionalInformationEntry.from_tensor(tensor)


def test_policy_covers_lists():
    with pytest.raises(NonFiniteTensorError):
        AdditionalInformationEntry.from_list([1.0, float("nan")])
    entry = AdditionalInformationEntry.from_list([float("inf")], PayloadLimits(allow_non_finite=True))
    assert entry.to_list() == [float("inf")]


WRONG_EMBEDS = {
    "one dimension": torch.zeros(4),
    "three dimensions": torch.zeros(1, 2, 3),
    "integers": torch.zeros(2, 3, dtype=torch.int64),
    "doubles": torch.zeros(2, 3, dtype=torch.float64),
    "no rows": torch.zeros(0, 3),
}


@pytest.mark.parametrize("name", WRONG_EMBEDS)
def test_wrong_prompt_embeds_are_refused(name):
    with pytest.raises(InvalidTensorError, match="prompt_embeds"):
        PromptEmbedsPayload.from_tensor(WRONG_EMBEDS[name])


def test_lists_keep_their_types():
    values = [1, -(2**63), 2**64 - 1, 1.5, True, False, None, "text", ""]
    received = AdditionalInformationPayload.from_bytes(
        AdditionalInformationPayload.from_mapping({"x": values}).to_bytes()
    ).list("x")
    assert received == values
    assert [type(value) for value in received] == [type(value) for value in values]


def test_value_returns_a_tensor_or_a_list():
    assert AdditionalInformationEntry.from_list([1]).value() == [1]
    assert torch.equal(AdditionalInformationEntry.from_tensor(torch.ones(2)).value(), torch.ones(2))


def test_named_access():
    payload = AdditionalInformationPayload.from_mapping({"t": torch.ones(2), "l": [1], "tuple": (2, 3)})
    assert payload.list("l") == [1]
    assert payload.list("tuple") == [2, 3]
    assert "t" in payload
    assert "other" not in payload
    payload.list("l").append(9)
    assert payload.list("l") == [1]
    for access, name in ((payload.tensor, "l"), (payload.list, "t"), (payload.tensor, "no"), (payload.list, "no")):
        with pytest.raises(InvalidTensorError, match=f"additional_information.{name}"):
            access(name)
    with pytest.raises(InvalidTensorError):
        payload.entries["l"].to_tensor()
    with pytest.raises(InvalidTensorError):
        payload.entries["t"].to_list()


def test_values_never_show_in_representations():
    canary = "CANARY-91"
    payload = AdditionalInformationPayload.from_mapping({"x": [canary, 424242], "t": torch.full((2,), 424242.0)})
    embeds = PromptEmbedsPayload.from_tensor(torch.full((1, 2), 424242.0))
    objects = [payload, *payload.entries.values(), embeds]
    shown = "".join(repr(item) + str(item) + repr(item.__rich_repr__()) for item in objects)
    assert canary not in shown
    assert "424242" not in shown
    assert "tensor_data" not in shown
    assert "shape=[2]" in shown


def test_payloads_cannot_be_changed():
    payload = AdditionalInformationPayload.from_mapping({"x": [1]})
    with pytest.raises(AttributeError):
        payload.entries = {}
    with pytest.raises(AttributeError):
        payload.entries["x"].list_data = None


def test_empty_payload_is_a_payload():
    payload = AdditionalInformationPayload.from_mapping({})
    assert AdditionalInformationPayload.from_bytes(payload.to_bytes()).nbytes == 0


def peak_bytes(call) -> tuple[int, int]:
    """Returns two sizes of Python's memory in bytes: what the call's result keeps, and the peak during the call."""
    tracemalloc.start()
    try:
        result = call()
        kept, peak = tracemalloc.get_traced_memory()
        del result
        return kept, peak
    finally:
        tracemalloc.stop()


def test_each_step_costs_one_copy():
    """Every conversion makes one copy of the data and no more, as docs/performance/transport-and-tokens.md says."""
    tensor = torch.ones(1024, 1024)
    payload = AdditionalInformationPayload.from_mapping({"x": tensor})
    raw = payload.to_bytes()
    embeds = PromptEmbedsPayload.from_tensor(tensor)
    steps = {
        "from_mapping": lambda: AdditionalInformationPayload.from_mapping({"x": tensor}),
        "to_bytes": payload.to_bytes,
        "from_bytes": lambda: AdditionalInformationPayload.from_bytes(raw),
        "tensor": lambda: payload.tensor("x"),
        "embeds from_tensor": lambda: PromptEmbedsPayload.from_tensor(tensor),
        "embeds to_tensor": embeds.to_tensor,
    }
    for name, call in steps.items():
        kept, peak = peak_bytes(call)
        # msgspec's encoder reserves half as much again but never touches it: this is address space, not memory.
        reserved = tensor.nbytes // 2 if name.endswith("to_bytes") else 0
        assert kept < 1.01 * tensor.nbytes + reserved, name
        # The scan for NaN and infinity reads 1 MiB at a time.
        assert peak < tensor.nbytes + reserved + (3 << 20), name


def test_wire_is_plain_msgpack():
    raw = AdditionalInformationPayload.from_mapping({"x": torch.ones(1), "l": [1]}).to_bytes()
    entries = msgspec.msgpack.decode(raw)["entries"]
    assert entries["x"]["tensor_shape"] == [1]
    assert entries["x"]["tensor_data"] == torch.ones(1).numpy().tobytes()
    assert entries["l"] == {"list_data": [1]}
