"""Host memory for copies that overlap with the runner's steps.

On an accelerator, a copy to or from the host overlaps with other work, which requires pinned memory, a stream and an
event. On the CPU there is nothing to copy. Only this module makes that distinction, so that tests can take the
accelerator's branch on a CPU (tests/support/engines/async_on_cpu.py).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


def copies_overlap(device: torch.device) -> bool:
    """Returns whether copies between the host and `device` overlap with the device's work."""
    return device.type == "cuda"


def pinned_empty(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Returns an uninitialised host tensor in pinned memory. Raises RuntimeError if there is no accelerator."""
    return torch.empty(tuple(shape), dtype=dtype, pin_memory=True)


def to_device(values: Sequence[int] | Sequence[Sequence[int]] | torch.Tensor, device: torch.device) -> torch.Tensor:
    """Returns a table of integers as an int64 tensor on `device`, without waiting for the device's earlier work.

    A copy from memory that is not pinned may wait, even with non_blocking.
    """
    table = torch.as_tensor(values, dtype=torch.int64)
    if not copies_overlap(device):
        return table
    return pinned_empty(table.shape, table.dtype).copy_(table).to(device, non_blocking=True)
