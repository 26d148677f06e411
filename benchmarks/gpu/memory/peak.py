"""Measures the peak memory of a computation without a device, on meta tensors, which have shapes but no data.

A storage that an operator of torch returns counts until nothing refers to it any more, as in a caching allocator.
Sizes are not rounded up. Workspaces, which an operator allocates only while it runs, are not counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class PeakMemory(TorchDispatchMode):
    """A context manager. `peak` is the largest number of bytes that tensors made in the block held at one time."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self.largest = 0
        """Bytes of the largest single storage."""
        self._live: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {StorageWeakRef(tensor.untyped_storage()).cdata for tensor in _tensors((args, kwargs or {}))}
        for tensor in _tensors(result):
            storage = tensor.untyped_storage()
            reference = StorageWeakRef(storage)
            if reference.cdata in given and reference.cdata not in self._live:
                continue  # It is a view of an argument that existed before the block.
            self._live[reference.cdata] = (reference, storage.nbytes())
            self.largest = max(self.largest, storage.nbytes())
        self._live = {key: entry for key, entry in self._live.items() if not entry[0].expired()}
        self.peak = max(self.peak, sum(size for _, size in self._live.values()))
        return result


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    return (leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor))
