"""The arithmetic of GPU memory, compared with vLLM's own formulas."""

from __future__ import annotations

from itertools import permutations
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.config import CacheConfig
from vllm.utils.mem_utils import MemorySnapshot
from vllm.v1.core.kv_cache_utils import get_max_concurrency_for_kv_cache_config
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.worker.utils import request_memory

from omni_proto.gpu_memory import (
    DEFAULT_SHARE,
    GIB,
    KvShape,
    PeakMemory,
    find_problems,
    minimum_share,
    requested_bytes,
    torch_share,
)

THINKER_7B, TALKER_7B = KvShape(28, 4, 128), KvShape(24, 4, 128)
THINKER_3B, TALKER_3B = KvShape(36, 2, 128), KvShape(24, 2, 64)
H100 = 78 * GIB


def _spec(shape: KvShape, block_tokens: int) -> FullAttentionSpec:
    return FullAttentionSpec(
        block_size=block_tokens, num_kv_heads=shape.kv_heads, head_size=shape.head_size, dtype=torch.bfloat16
    )


@pytest.mark.parametrize("block_tokens", [16, 32])
@pytest.mark.parametrize(
    "shape", [THINKER_7B, TALKER_7B, THINKER_3B, TALKER_3B], ids=["7B", "talker", "3B", "3B talker"]
)
def test_a_block_is_as_large_as_vllm_says(shape: KvShape, block_tokens: int) -> None:
    page = _spec(shape, block_tokens).page_size_bytes
    assert shape.token_bytes * block_tokens == page * shape.layers
    assert shape.count_blocks(4 * GIB, block_tokens) == 4 * GIB // (page * shape.layers)


@pytest.mark.parametrize("length", [8192, 8000, 1])
def test_as_many_requests_fit_as_vllm_says(length: int) -> None:
    shape, cache = THINKER_7B, 24 * GIB
    names = [f"layer.{index}" for index in range(shape.layers)]
    blocks = shape.count_blocks(cache)
    config = KVCacheConfig(
        num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(names, _spec(shape, 16))]
    )
    vllm: Any = SimpleNamespace(
        model_config=SimpleNamespace(max_model_len=length),
        parallel_config=SimpleNamespace(decode_context_parallel_size=1, prefill_context_parallel_size=1),
    )
    expected = get_max_concurrency_for_kv_cache_config(vllm, config)
    assert shape.count_requests(cache, length) == pytest.approx(expected)


def _snapshot(free: int, total: int) -> MemorySnapshot:
    return MemorySnapshot(free_memory=free, total_memory=total, device="cpu", auto_measure=False)


@pytest.mark.parametrize("share", [DEFAULT_SHARE, 0.6, 0.205, 1.0])
def test_vllm_asks_for_the_share_whatever_the_cache(share: float) -> None:
    """vLLM requires its share of the memory to be free even if the cache's size is fixed."""
    config = CacheConfig(gpu_memory_utilization=share, kv_cache_memory_bytes=GIB)
    assert request_memory(_snapshot(H100, H100), config) == requested_bytes(share, H100)
    with pytest.raises(ValueError, match="less than desired GPU memory utilization"):
        request_memory(_snapshot(requested_bytes(share, H100) - 1, H100), config)


def test_the_default_share_is_vllms() -> None:
    assert CacheConfig().gpu_memory_utilization == DEFAULT_SHARE


def _stages(*needs: tuple[float, float]) -> list[PeakMemory]:
    return [
        PeakMemory(f"stage{index}", weights=int(gib * GIB), context=0, share=share)
        for index, (gib, share) in enumerate(needs)
    ]


CASES = {
    "within their shares": (_stages((46, 0.6), (14, 0.2), (12, 0.16)), []),
    "vllm's default for each": (_stages((46, 0.92), (14, 0.92), (12, 0.92)), ["stage0", "stage1", "stage2"]),
    "one passes its share": (_stages((50, 0.6), (14, 0.2), (12, 0.16)), ["stage0"]),
    "shares add up to more than 1": (_stages((46, 0.6), (30, 0.4), (4, 0.1)), ["stage0", "stage1", "stage2"]),
}


@pytest.mark.parametrize(("stages", "named"), CASES.values(), ids=CASES)
def test_stages_that_fit_start_in_every_order(stages: list[PeakMemory], named: list[str]) -> None:
    problems = find_problems(stages, H100)
    assert [problem.stage for problem in problems] == named
    if named:
        return
    for order in permutations(stages):
        free = H100
        for stage in order:
            request_memory(_snapshot(free, H100), CacheConfig(gpu_memory_utilization=stage.share))
            free -= stage.total


@pytest.mark.parametrize(
    ("stages", "words"),
    [
        (_stages((50, 0.6)), "needs 50.0 GiB, its share is 46.8 GiB; raise gpuMemoryUtilization to 0.65"),
        (_stages((60, 0.92), (10, 0.92)), "asks for 71.8 GiB free, but the others leave 68.0 GiB; lower shares"),
    ],
    ids=["share", "sum"],
)
def test_a_problem_names_its_remedy(stages: list[PeakMemory], words: str) -> None:
    assert words in find_problems(stages, H100)[0].words


@pytest.mark.parametrize("share", [0.61, 0.33, 1.0])
def test_the_minimum_share_covers_the_need(share: float) -> None:
    needed = int(share * H100)
    assert requested_bytes(minimum_share(needed, H100), H100) >= needed
    assert requested_bytes(minimum_share(needed, H100) - 0.01, H100) < needed


def test_torch_gets_the_share_without_cudas_own() -> None:
    """torch's limit is the stage's share minus the memory of the CUDA context."""
    assert torch_share(0.16, 100 * GIB, context=GIB) == pytest.approx(0.15)
    with pytest.raises(ValueError, match=r"0.01 of 24.0 GiB is 0.24 GiB, and CUDA itself needs about 0.62 GiB"):
        torch_share(0.01, 24 * GIB)
