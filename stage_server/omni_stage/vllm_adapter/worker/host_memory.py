"""Host memory for copies that overlap with the runner's steps.

On an accelerator, a copy to or from the host overlaps with other work, which requires pinned memory, a stream and an
event. On the CPU there is nothing to copy. Only this module makes that distinction, so that tests can take the
accelerator's branch on a CPU (tests/support/async_on_cpu.py).
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
