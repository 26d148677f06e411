"""A diffusion stage's share of a GPU becomes a bound on torch's allocator."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from omni_proto.gpu_memory import CUDA_CONTEXT_BYTES, GIB
from omni_stage.errors import ConfigurationError
from omni_stage.vllm_adapter.gpu_workers import limit_torch_memory

CUDA = torch.device("cuda", 0)


@pytest.fixture
def bounds(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, Any]]:
    """Returns a list that records the calls to torch's memory limit, which would need a GPU."""
    told: list[tuple[float, Any]] = []
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda *call: told.append(call))
    return told


def test_the_share_less_what_cuda_needs(bounds: list[tuple[float, Any]]) -> None:
    limit_torch_memory(0.14, 78 * GIB, CUDA)
    ((share, device),) = bounds
    assert share * 78 * GIB == pytest.approx(0.14 * 78 * GIB - CUDA_CONTEXT_BYTES)
    assert device == CUDA


def test_a_share_that_leaves_nothing_names_its_remedy(bounds: list[tuple[float, Any]]) -> None:
    with pytest.raises(
        ConfigurationError, match=r"engineArgs.gpuMemoryUtilization 0.01 of 24.0 GiB .*; raise it"
    ) as told:
        limit_torch_memory(0.01, 24 * GIB, CUDA)
    assert told.value.details.field == "engineArgs.gpuMemoryUtilization"
    assert bounds == []
