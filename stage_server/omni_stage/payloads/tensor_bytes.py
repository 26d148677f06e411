"""Converts tensors to raw bytes and back. No other module of this package imports torch; this one imports it only
inside functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeGuard

from omni_stage.errors import InvalidTensorError
from omni_stage.payloads.checks import ITEM_BYTES

if TYPE_CHECKING:
    import torch


def is_tensor(value: object) -> TypeGuard[torch.Tensor]:
    """Returns whether the value is a torch tensor."""
    import torch

    return isinstance(value, torch.Tensor)


def dtype_name(tensor: torch.Tensor, *, field: str) -> str:
    """Returns the name of the tensor's dtype in payloads. Raises InvalidTensorError if payloads cannot hold it."""
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in ITEM_BYTES:
        raise InvalidTensorError(f"{field}: dtype {name} must be one of {', '.join(ITEM_BYTES)}", field=field)
    return name


def write_bytes(tensor: torch.Tensor, *, field: str) -> bytes:
    """Returns the tensor's values, row-major, in this machine's (little-endian) byte order.

    The tensor may be on any device and have any strides, and is not changed. Its values are copied once, or twice if
    the tensor is not contiguous on the CPU.
    Raises InvalidTensorError for tensors without dense values: sparse, quantized, or on the meta device.
    """
    import torch

    if tensor.layout != torch.strided or tensor.device.type == "meta" or tensor.is_quantized:
        raise InvalidTensorError(f"{field}: only dense tensors that hold values can be sent", field=field)
    dense = tensor.detach().resolve_neg().cpu().contiguous()
    return bytes(dense.reshape(-1).view(torch.uint8).numpy().tobytes())


def read_bytes(data: bytes, shape: Sequence[int], dtype: str, device: str | torch.device) -> torch.Tensor:
    """Returns a tensor [*shape] that owns its memory on the device. Shape, dtype and length must have been checked.

    torch.frombuffer over `bytes` would be a writable view of read-only memory. So the bytes are copied into a
    bytearray, which the tensor owns and may write.
    """
    import torch

    flat = torch.frombuffer(bytearray(data), dtype=getattr(torch, dtype))
    return flat.reshape(tuple(shape)).to(device)
