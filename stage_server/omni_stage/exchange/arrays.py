"""CPU tensors as the stage server handles them: numpy arrays, or torch tensors where an engine returns those.

The stage server itself does not need torch, so it can serve an engine that does not use torch. torch is imported only
where a torch tensor is requested or was received. numpy has no bfloat16, so its arrays hold the bits as uint16.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from omni_proto.tensors import ReceivedTensor, TensorSpec, dtype_info

if TYPE_CHECKING:
    import torch

_TORCH_GRAIN = 32_768
"""From this number of elements on, torch copies with several threads, and the event loop would have to wait for
them."""

Array: TypeAlias = "npt.NDArray[Any] | torch.Tensor"
"""[rows, ...] on the CPU."""


def fits(array: Array, spec: TensorSpec) -> bool:
    """Returns whether an array has the element type and the row shape of its schema."""
    if isinstance(array, np.ndarray):
        dtype, wanted = array.dtype.name, np.dtype(dtype_info(spec.dtype).numpy_name).name
    else:
        dtype, wanted = str(array.dtype).removeprefix("torch."), spec.dtype
    return bool(dtype == wanted and array.ndim > 0 and tuple(array.shape[1:]) == spec.row_shape)


def describe_array(array: Array) -> str:
    """Returns element type and shape, for messages."""
    return f"{str(array.dtype).removeprefix('torch.')}{list(array.shape)}"


def join(arrays: Sequence[Array]) -> Array:
    """Returns one array with the rows of all arrays. A single array is not copied.

    The arrays must all be numpy arrays or all torch tensors.
    """
    first = arrays[0]
    if len(arrays) == 1:
        return first
    if isinstance(first, np.ndarray):
        joined: npt.NDArray[Any] = np.concatenate(cast("Sequence[npt.NDArray[Any]]", arrays))
        return joined
    import torch

    return torch.cat(cast("list[torch.Tensor]", list(arrays)))


def view_bytes(array: Array) -> memoryview:
    """Returns the array's bytes, contiguous and little-endian. An array that already has this form is not copied."""
    little = _to_little(array)
    return np.ascontiguousarray(little).reshape(-1).view(np.uint8).data


def join_bytes(arrays: Sequence[Array]) -> memoryview:
    """Returns the concatenated bytes of all arrays, as `view_bytes` does for a single one. Copies several arrays once.

    The arrays must all be numpy arrays or all torch tensors, of the same row shape.
    """
    if len(arrays) == 1 or sum(math.prod(array.shape) for array in arrays) < _TORCH_GRAIN:
        return view_bytes(join(arrays))
    return view_bytes(np.concatenate([_to_little(array) for array in arrays]))


def _to_little(array: Array) -> npt.NDArray[Any]:
    """Returns a little-endian numpy array of the same elements, bfloat16 as integers; a view where possible."""
    if isinstance(array, np.ndarray):
        return array.astype(array.dtype.newbyteorder("<"), copy=False)
    import torch

    # A call into torch takes a microsecond, and this runs for every message: make only the calls that are needed.
    if array.requires_grad or array.device.type != "cpu":
        array = array.detach().cpu()
    if array.dtype is torch.bfloat16:
        array = array.view(torch.int16)
    whole: npt.NDArray[Any] = array.numpy()
    return whole


def to_samples(audio: Array) -> npt.NDArray[np.float32]:
    """Returns audio as float32 [samples], without a copy if it already has that form."""
    if isinstance(audio, np.ndarray):
        return np.ascontiguousarray(audio, dtype=np.float32).reshape(-1)
    import torch

    samples: npt.NDArray[np.float32] = audio.detach().to(device="cpu", dtype=torch.float32).reshape(-1).numpy()
    return np.ascontiguousarray(samples)


def to_numpy(received: Mapping[str, ReceivedTensor]) -> dict[str, Array]:
    """Returns received tensors as numpy arrays [rows, *row_shape] that share the received buffers."""
    return {name: item.to_numpy() for name, item in received.items()}


def to_torch(received: Mapping[str, ReceivedTensor]) -> dict[str, torch.Tensor]:
    """Returns received tensors as torch tensors [rows, *row_shape] that share the received buffers."""
    return {name: _to_torch(item) for name, item in received.items()}


def _to_torch(item: ReceivedTensor) -> torch.Tensor:
    import torch

    dtype: torch.dtype = getattr(torch, item.spec.dtype)
    if item.rows == 0:
        return torch.empty(item.shape, dtype=dtype)
    return torch.frombuffer(item.data, dtype=dtype).reshape(item.shape)
