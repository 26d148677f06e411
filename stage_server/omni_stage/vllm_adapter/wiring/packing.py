"""How a worker's output reaches the front end when one plain tensor is not enough.

vLLM carries one tensor per request from the worker to the front end (`ModelRunnerOutput.pooler_output[i]`, then
`EngineCoreOutput.pooling_output`). A plain tensor is `rows` for an autoregressive stage and `output` for a diffusion
stage. Several named tensors, or the failure of one request, travel packed in a 1-D uint8 tensor::

    magic (8 bytes) | header length (uint32, little-endian) | header (msgpack) | padding | tensor | padding | ...

Each tensor starts at a multiple of 16 bytes, in the order of the header. A packed tensor is recognised by dtype, rank
and magic. `encode_output` therefore packs every 1-D uint8 tensor of a model, so that a plain output is never mistaken
for a packed one. The reader checks every length before it reads the bytes; nothing is evaluated or unpickled.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import torch

from omni_proto.tensors import DTYPES
from omni_stage.errors import CorruptTensorError, InvalidTensorError

ROWS_NAME = "rows"
"""Name of an autoregressive stage's plain tensor: captured rows [N, H]."""
OUTPUT_NAME = "output"
"""Name of a diffusion stage's plain tensor."""

_MAGIC = b"\x89OMNIPK1"
_PREFIX = struct.Struct("<8sI")
_ALIGNMENT = 16
_MAX_HEADER_BYTES = 1 << 20
_MAX_MESSAGE_CHARACTERS = 2048
_DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in DTYPES}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


class _TensorHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    dtype: str
    shape: list[int]


class _ErrorHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    kind: str
    message: str


class _Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tensors: list[_TensorHeader] = []
    error: _ErrorHeader | None = None


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(_Header)


@dataclass(frozen=True)
class UnpackedOutput:
    """One request's output of one step: named CPU tensors, or the failure of this request."""

    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    error: tuple[str, str] | None = None
    """(kind, message): the exception's class name and a message that holds no contents."""


def pack_tensors(tensors: Mapping[str, torch.Tensor | Sequence[torch.Tensor]]) -> torch.Tensor:
    """Packs named tensors into a contiguous 1-D uint8 CPU tensor; `unpack` returns them bit for bit.

    Several tensors of one name, on the CPU and alike but for their rows, become one: the rows of each in turn. A tensor
    on another device is copied to the host here, which waits for the device.

    Raises:
        InvalidTensorError: a dtype is not supported, a name is empty, or the names and shapes are too long together.
    """
    headers: list[_TensorHeader] = []
    groups: list[Sequence[torch.Tensor]] = []
    for name, given in tensors.items():
        if not name:
            raise InvalidTensorError("an output tensor has an empty name; give each tensor a name", field="name")
        parts = (given,) if isinstance(given, torch.Tensor) else given
        shape = list(parts[0].shape)
        if len(parts) > 1:
            shape[0] = sum(part.shape[0] for part in parts)
        headers.append(_TensorHeader(name, _dtype_name(name, parts[0]), shape))
        groups.append(parts)
    return _assemble(_Header(tensors=headers), groups)


def pack_error(kind: str, message: str) -> torch.Tensor:
    """Packs the failure of one request. The client gets `message`: it must hold no prompt or tensor contents."""
    return _assemble(_Header(error=_ErrorHeader(kind, message[:_MAX_MESSAGE_CHARACTERS])), [])


def encode_output(tensors: Mapping[str, torch.Tensor], default_name: str) -> torch.Tensor:
    """Returns one CPU tensor for `pooler_output[i]`. A single tensor with the default name stays plain.

    Otherwise all tensors are packed. So is a 1-D uint8 tensor, because its bytes could be mistaken for a header.

    Raises InvalidTensorError as `pack_tensors` does.
    """
    if len(tensors) == 1 and default_name in tensors:
        _dtype_name(default_name, tensors[default_name])
        only = tensors[default_name].detach().to("cpu").contiguous()
        if not _may_be_packed(only):
            return only
    return pack_tensors(tensors)


def unpack(tensor: torch.Tensor, default_name: str) -> UnpackedOutput:
    """Reads what `encode_output`, `pack_tensors` or `pack_error` wrote.

    Returns a plain tensor as `{default_name: tensor}`, without a copy. Packed tensors are copied out, so that they own
    aligned, writable memory whatever buffer the transport used.

    Raises:
        CorruptTensorError: the tensor begins like a packed one, but its header or its length is wrong.
    """
    if not _may_be_packed(tensor) or bytes(tensor[: len(_MAGIC)].tolist()) != _MAGIC:
        return UnpackedOutput({default_name: tensor})
    header, offset = _read_header(tensor)
    if header.error is not None:
        return UnpackedOutput(error=(header.error.kind, header.error.message))
    result: dict[str, torch.Tensor] = {}
    for entry in header.tensors:
        offset = _aligned(offset)
        length = _byte_length(entry)
        if entry.name in result or offset + length > tensor.numel():
            raise _corrupt(f"tensor {entry.name!r} is declared twice or ends beyond the packed bytes")
        data = tensor[offset : offset + length].clone()
        result[entry.name] = data.view(_DTYPES[entry.dtype]).reshape(entry.shape)
        offset += length
    if offset != tensor.numel():
        raise _corrupt(f"{tensor.numel() - offset} bytes follow the last tensor")
    return UnpackedOutput(result)


def _dtype_name(name: str, tensor: torch.Tensor) -> str:
    if tensor.dtype not in _NAMES:
        raise InvalidTensorError(
            f"output tensor {name!r} has dtype {tensor.dtype}, not one of {', '.join(_DTYPES)}",
            field=name,
            limit=", ".join(_DTYPES),
        )
    return _NAMES[tensor.dtype]


def _may_be_packed(tensor: torch.Tensor) -> bool:
    return tensor.dtype == torch.uint8 and tensor.dim() == 1


def _assemble(header: _Header, groups: Sequence[Sequence[torch.Tensor]]) -> torch.Tensor:
    encoded = _ENCODER.encode(header)
    if len(encoded) > _MAX_HEADER_BYTES:
        raise InvalidTensorError(
            f"the names and shapes of an output take {len(encoded)} bytes; return fewer or shorter-named tensors",
            limit=f"{_MAX_HEADER_BYTES} bytes",
        )
    head = _PREFIX.pack(_MAGIC, len(encoded)) + encoded
    total = len(head)
    for entry in header.tensors:
        total = _aligned(total) + _byte_length(entry)
    packed = torch.empty(total, dtype=torch.uint8)
    packed[: len(head)] = torch.frombuffer(bytearray(head), dtype=torch.uint8)
    end = len(head)
    for entry, parts in zip(header.tensors, groups, strict=True):
        offset = _aligned(end)
        packed[end:offset] = 0
        end = offset + _byte_length(entry)
        # Rows are copied once, straight to their place: those of a long prompt are many MiB.
        place = packed[offset:end].view(_DTYPES[entry.dtype]).reshape(entry.shape)
        if len(parts) == 1:
            place.copy_(parts[0].detach())
        else:
            torch.cat([part.detach() for part in parts], out=place)
    return packed


def _read_header(tensor: torch.Tensor) -> tuple[_Header, int]:
    """Returns the header and the offset after it."""
    if tensor.numel() < _PREFIX.size:
        raise _corrupt("it is shorter than its prefix")
    _, length = _PREFIX.unpack(bytes(tensor[: _PREFIX.size].tolist()))
    end = _PREFIX.size + length
    if length > _MAX_HEADER_BYTES or end > tensor.numel():
        raise _corrupt("its header is longer than the limit, or than the bytes that arrived")
    try:
        header = _DECODER.decode(bytes(tensor[_PREFIX.size : end].tolist()))
    except msgspec.MsgspecError as error:
        raise _corrupt("its header does not decode") from error
    return header, end


def _byte_length(entry: _TensorHeader) -> int:
    if entry.dtype not in _DTYPES:
        raise _corrupt(f"tensor {entry.name!r} has an unknown dtype")
    if any(size < 0 for size in entry.shape):
        raise _corrupt(f"tensor {entry.name!r} has a negative size")
    # Python integers do not overflow. The caller compares the product with the packed bytes before it allocates memory.
    return math.prod(entry.shape) * _DTYPES[entry.dtype].itemsize


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGNMENT) * _ALIGNMENT


def _corrupt(what: str) -> CorruptTensorError:
    return CorruptTensorError(f"a packed worker output cannot be read: {what}", field="pooling_output")
