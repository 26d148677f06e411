"""What a computation would launch on a GPU, found without one: run it on fake CUDA tensors under `Launches`."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Launches(TorchDispatchMode):
    """Counts operators that compute something, and notes those that no CUDA graph can hold."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.refused: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        name = str(function)
        source = next((value for value in args if isinstance(value, torch.Tensor)), None)
        first = next(iter(result), None) if isinstance(result, tuple) else result
        moves = source is not None and isinstance(first, torch.Tensor) and first.device.type != source.device.type
        if moves or name in ("aten._local_scalar_dense.default", "aten.nonzero.default", "aten.masked_select.default"):
            self.refused.append(name)
        if (
            isinstance(first, torch.Tensor)
            and not function.is_view
            and not name.startswith(("aten.empty", "aten.new_empty", "aten._unsafe_view"))
        ):
            self.count += 1
        return result
