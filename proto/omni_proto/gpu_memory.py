"""GPU memory: how much a stage needs, and whether several stages fit on one GPU. Pure; all sizes are in bytes.

A stage on a GPU holds weights, a KV cache, activations, CUDA graphs and CUDA's own context. vLLM 0.32 checks memory
twice. When a stage starts, `request_memory` (v1/worker/utils.py) requires gpuMemoryUtilization x total to be free,
whatever kvCacheMemoryMib says. Later, without kvCacheMemoryMib, vLLM profiles the model and gives the rest of that
share to the KV cache; with kvCacheMemoryMib it allocates that much and measures nothing. This module has the same
formulas, so that tables in the docs, samples and `omnipipe run` can be checked without a GPU. Tests compare them with
vLLM's formulas.
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
"""Memory per process in addition to torch's allocations: context, loaded kernels, cuBLAS and cuDNN. This is a generous
estimate: half of it is usual, and the exact size depends on driver and card."""
_LOGITS_BYTES: Final = 32
"""Bytes per request and vocabulary entry at the peak of vLLM's sampler in PyTorch (v1/sample/ops/
topk_topp_sampler.py): bfloat16 and float32 logits, sorted values, int64 indices, probabilities, their sum, masks."""


@dataclass(frozen=True, slots=True)
class KvShape:
    """The shape of a transformer's KV cache on one GPU. With tensor parallelism, kv_heads is for one rank."""

    layers: int
    kv_heads: int
    head_size: int
    element_bytes: int = 2

    @property
    def token_bytes(self) -> int:
        """Bytes of the keys and values of one token in all layers."""
        return 2 * self.layers * self.kv_heads * self.head_size * self.element_bytes

    def count_blocks(self, cache_bytes: int, block_tokens: int = 16) -> int:
        """Returns the number of whole blocks in a cache of that size."""
        return cache_bytes // (self.token_bytes * block_tokens)

    def count_requests(self, cache_bytes: int, length: int, block_tokens: int = 16) -> float:
        """Returns how many requests of that length, in tokens, the cache holds at once."""
        return self.count_blocks(cache_bytes, block_tokens) / math.ceil(length / block_tokens)


@dataclass(frozen=True, slots=True)
class TransformerShape:
    """The dimensions of a text decoder that determine the size of its activations."""

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int

    def activation_bytes(self, *, batched_tokens: int, sequences: int, element_bytes: int = 2) -> int:
        """Returns an upper estimate of a step's activations: the widest layer, input rows, the sampler's logits.

        Per token: four rows of the hidden size, for residual, normalized and input values, and the wider of attention
        (queries, keys, values, output) and feed-forward (gate, up, and their product).
        """
        attention = (2 * self.heads + 2 * self.kv_heads) * self.head_size
        widest = max(attention, 3 * self.intermediate)
        step = batched_tokens * (4 * self.hidden + widest) * element_bytes
        return step + sequences * self.vocabulary * _LOGITS_BYTES


@dataclass(frozen=True, slots=True)
class PeakMemory:
    """The peak memory of one stage on its GPU, by use."""

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
        """The sum of all uses."""
        return self.weights + self.kv_cache + self.activations + self.graphs + self.context


def requested_bytes(share: float, device_bytes: int) -> int:
    """Returns the bytes that vLLM requires to be free when a stage with this gpuMemoryUtilization starts."""
    return math.ceil(device_bytes * share)


def minimum_share(needed: int, device_bytes: int) -> float:
    """Returns the smallest gpuMemoryUtilization, rounded up to hundredths, that covers the needed bytes.

    A result above 1 means that they do not fit the device.
    """
    hundredths = math.ceil(needed * 100 / device_bytes)
    return hundredths / 100


def torch_share(share: float, device_bytes: int, context: int = CUDA_CONTEXT_BYTES) -> float:
    """Returns the share of a GPU that torch's allocator may use in a process that may use `share` of the GPU.

    CUDA's context takes the difference. Raises ValueError if nothing is left.
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
    """One reason why stages do not fit on one GPU."""

    stage: str
    words: str


def find_problems(stages: Sequence[PeakMemory], device_bytes: int) -> list[MemoryProblem]:
    """Returns why these stages cannot share a GPU of that size; empty if they can, in whatever order they start.

    A stage that exceeds its share takes memory that another stage counts on. If no stage exceeds its share, and the
    shares add up to at most 1, vLLM's check passes in every order.
    """
    problems = []
    for stage in stages:
        wanted = requested_bytes(stage.share, device_bytes)
        free = device_bytes - sum(other.total for other in stages if other is not stage)
        if stage.total > wanted:
            remedy = f"raise gpuMemoryUtilization to {minimum_share(stage.total, device_bytes):.2f}"
            words = f"needs {stage.total / GIB:.1f} GiB, its share is {wanted / GIB:.1f} GiB; {remedy}"
            problems.append(MemoryProblem(stage.name, f"{words} or lower kvCacheMemoryMib"))
        if free < wanted:
            words = f"asks for {wanted / GIB:.1f} GiB free, but the others leave {free / GIB:.1f} GiB"
            problems.append(MemoryProblem(stage.name, f"{words}; lower shares until they add up to 1 at most"))
    return problems
