"""Arithmetic of GPU memory: what a stage holds, and whether stages fit one GPU. Pure; all sizes are bytes.

A stage on a GPU holds weights, a KV cache, activations, CUDA graphs and CUDA's own context. vLLM 0.32 looks at them
twice. When a stage starts, `request_memory` (v1/worker/utils.py) demands that gpuMemoryUtilization x total is free,
whatever kvCacheMemoryMib says. Later, without kvCacheMemoryMib, it profiles and gives the rest of that share to the KV
cache; with kvCacheMemoryMib it takes that many bytes and measures nothing. The same formulas are here, so that a table,
a sample and `omnipipe run` can be checked without a GPU; tests compare them with vLLM's own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

MIB: Final = 1 << 20
GIB: Final = 1 << 30
DEFAULT_SHARE: Final = 0.92
"""Default of gpuMemoryUtilization (vLLM 0.32, CacheConfig)."""
CUDA_CONTEXT_BYTES: Final = 640 * MIB
"""Reserved per process beside torch's allocations: context, loaded kernels, cuBLAS and cuDNN. An allowance: half of it
is usual, and the exact figure depends on driver and card."""
_LOGITS_BYTES: Final = 32
"""Per request and vocabulary entry at the widest point of vLLM's sampler in PyTorch (v1/sample/ops/
topk_topp_sampler.py): bfloat16 and float32 logits, sorted values, int64 indices, probabilities, their sum, masks."""


@dataclass(frozen=True, slots=True)
class KvShape:
    """A transformer's KV cache on one GPU. With tensor parallelism: the KV heads of one rank."""

    layers: int
    kv_heads: int
    head_size: int
    element_bytes: int = 2

    @property
    def token_bytes(self) -> int:
        """Bytes that one token holds in all layers: keys and values."""
        return 2 * self.layers * self.kv_heads * self.head_size * self.element_bytes

    def count_blocks(self, cache_bytes: int, block_tokens: int = 16) -> int:
        """Whole blocks that a cache of that size has."""
        return cache_bytes // (self.token_bytes * block_tokens)

    def count_requests(self, cache_bytes: int, length: int, block_tokens: int = 16) -> float:
        """Requests of that length, in tokens, which the cache holds at once."""
        return self.count_blocks(cache_bytes, block_tokens) / math.ceil(length / block_tokens)


@dataclass(frozen=True, slots=True)
class TextShape:
    """The sizes of a decoder that its activations depend on."""

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int

    def activation_bytes(self, *, batched_tokens: int, sequences: int, element_bytes: int = 2) -> int:
        """An upper estimate of a step's activations: the widest layer, input rows, and the sampler's copies of logits.

        Per token: residual, normed and input rows of the hidden size, and the wider of attention (queries, keys,
        values, output) and feed-forward (gate and up, and their product).
        """
        attention = (2 * self.heads + 2 * self.kv_heads) * self.head_size
        widest = max(attention, 3 * self.intermediate)
        step = batched_tokens * (4 * self.hidden + widest) * element_bytes
        return step + sequences * self.vocabulary * _LOGITS_BYTES


@dataclass(frozen=True, slots=True)
class StageMemory:
    """What one stage holds on its GPU at its peak."""

    name: str
    weights: int
    kv_cache: int = 0
    activations: int = 0
    graphs: int = 0
    context: int = CUDA_CONTEXT_BYTES
    share: float = DEFAULT_SHARE
    """gpuMemoryUtilization."""

    @property
    def total(self) -> int:
        """The sum."""
        return self.weights + self.kv_cache + self.activations + self.graphs + self.context


def requested_bytes(share: float, device_bytes: int) -> int:
    """What vLLM demands to be free when a stage with this gpuMemoryUtilization starts."""
    return math.ceil(device_bytes * share)


def least_share(needed: int, device_bytes: int) -> float:
    """The smallest gpuMemoryUtilization, in hundredths, that covers the bytes. May pass 1: then they do not fit."""
    hundredths = math.ceil(needed * 100 / device_bytes)
    return hundredths / 100


def torch_share(share: float, device_bytes: int, context: int = CUDA_CONTEXT_BYTES) -> float:
    """The share of a GPU for torch's allocator in a process that may use `share` of it: the context is not torch's.

    Raises ValueError if nothing is left.
    """
    left = share * device_bytes - context
    if left <= 0:
        raise ValueError(
            f"gpuMemoryUtilization {share:g} of {device_bytes / GIB:.1f} GiB is {share * device_bytes / GIB:.2f} GiB, "
            f"and CUDA itself needs about {context / GIB:.2f} GiB"
        )
    return min(1.0, left / device_bytes)


@dataclass(frozen=True, slots=True)
class MemoryProblem:
    """Why stages do not fit one GPU."""

    stage: str
    words: str


def find_problems(stages: Sequence[StageMemory], device_bytes: int) -> list[MemoryProblem]:
    """Why these stages cannot share a GPU of that size, whichever starts first; empty if they can.

    A stage that passes its share takes what another counts on. If none does, and the shares add up to 1 at most, then
    vLLM's check passes in every order: others hold at most their shares.
    """
    problems = []
    for stage in stages:
        wanted = requested_bytes(stage.share, device_bytes)
        free = device_bytes - sum(other.total for other in stages if other is not stage)
        if stage.total > wanted:
            remedy = f"raise gpuMemoryUtilization to {least_share(stage.total, device_bytes):.2f}"
            words = f"needs {stage.total / GIB:.1f} GiB, its share is {wanted / GIB:.1f} GiB; {remedy}"
            problems.append(MemoryProblem(stage.name, f"{words} or lower kvCacheMemoryMib"))
        if free < wanted:
            words = f"asks for {wanted / GIB:.1f} GiB free, but the others leave {free / GIB:.1f} GiB"
            problems.append(MemoryProblem(stage.name, f"{words}; lower shares until they add up to 1 at most"))
    return problems
