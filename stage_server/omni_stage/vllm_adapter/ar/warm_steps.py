"""Runs, before a stage is ready, the steps whose kernels would otherwise be compiled when a user's request needs them.

Triton compiles a kernel once for each set of constants, and for whether each integer is 1, a multiple of 16, or
neither. vLLM's kernel for a mixture of experts has constants that depend on the number of tokens of a step, and vLLM
itself runs only the sizes of its CUDA graphs and the largest step. A prompt's step of another size would compile two
kernels, each of them half a second of a processor's time or more, while every request of the engine waits.

What is run follows from what the scheduler can schedule: of all possible numbers of tokens, the least one for each
variant of a kernel that no captured size has compiled.

Private interfaces of vLLM 0.32 used here, and why:
- `MoERunner._quant_method.moe_kernel`, `.routed_experts`, `TritonExperts` (layers/fused_moe): which kernel a mixture of
  experts runs, and its sizes.
- `try_get_optimal_moe_config` (layers/fused_moe/fused_moe.py): the kernel's constants for a number of tokens.
- `GPUModelRunner._dummy_run`: a step without requests, as vLLM's own warm-up runs it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from vllm.config import CUDAGraphMode, VllmConfig
from vllm.model_executor.layers.fused_moe.runner.moe_runner import MoERunner

if TYPE_CHECKING:
    from omni_stage.vllm_adapter.ar.runner import OmniARRunnerMixin

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ExpertKernel:
    """What decides which variants of `fused_moe_kernel` a layer runs."""

    experts: int
    top_k: int
    find_config: Callable[[int], Mapping[str, int]]
    """Number of tokens -> the kernel's constants, among them BLOCK_SIZE_M."""
    sorts_few: bool = False
    """Whether the pairs of token and expert are sorted by expert even if they are few: so with expert parallelism."""

    def variants(self, tokens: int) -> set[Hashable]:
        """Returns the variants that a step of so many tokens runs: one for each of the layer's two products.

        Source: vLLM 0.32, `_prepare_expert_assignment`, `moe_align_block_size`, `invoke_fused_moe_triton_kernel`.
        """
        config = self.find_config(tokens)
        block, pairs = config["BLOCK_SIZE_M"], tokens * self.top_k
        few = not self.sorts_few and 4 * pairs <= self.experts
        found: set[Hashable] = set()
        for product, rows in (("up", tokens), ("down", pairs)):
            padded = pairs * block
            if not few:
                sorted_pairs = pairs + self.experts * (block - 1)
                bounded = pairs < self.experts or rows < block
                padded = min(padded, sorted_pairs) if bounded else sorted_pairs
            found.add((product, frozenset(config.items()), few, _specialization(padded), _specialization(pairs)))
        return found


def reachable_steps(maximum: int, captured: Iterable[int]) -> list[int]:
    """Returns the numbers of tokens that a step can have, ascending, padding included.

    `maximum`: of tokens in a step. `captured`: sizes to which every smaller step is padded; none in eager mode.
    """
    sizes = sorted(size for size in captured if size <= maximum)
    return [*sizes, *range(max(sizes, default=0) + 1, maximum + 1)]


def steps_to_run(reachable: Iterable[int], captured: Iterable[int], kernels: Sequence[ExpertKernel]) -> list[int]:
    """Returns the least numbers of tokens that together run every variant that `reachable` runs and `captured` does
    not."""
    known = {variant for tokens in captured for variant in find_variants(tokens, kernels)}
    steps: list[int] = []
    for tokens in reachable:
        variants = find_variants(tokens, kernels)
        if not variants <= known:
            steps.append(tokens)
            known |= variants
    return steps


def find_variants(tokens: int, kernels: Sequence[ExpertKernel]) -> set[Hashable]:
    """Returns the variants of all kernels that a step runs. Any kernel may get the number of tokens as an argument."""
    found: set[Hashable] = {_specialization(tokens)}
    for index, kernel in enumerate(kernels):
        found |= {(index, variant) for variant in kernel.variants(tokens)}
    return found


def padded_sizes(config: VllmConfig) -> list[int]:
    """Returns the sizes of CUDA graphs to which steps with prompts are padded too; none if they run as they are."""
    compilation = config.compilation_config
    mode = compilation.cudagraph_mode
    if mode is None or mode.mixed_mode() == CUDAGraphMode.NONE:
        return []
    return list(compilation.cudagraph_capture_sizes or ())


def read_expert_kernels(model: nn.Module, dtype: torch.dtype) -> list[ExpertKernel]:
    """Returns the distinct Triton kernels of a loaded model's mixtures of experts; none on a CPU."""
    found: dict[Hashable, ExpertKernel] = {}
    for module in model.modules():
        if isinstance(module, MoERunner):
            experts = getattr(getattr(module._quant_method, "moe_kernel", None), "fused_experts", None)
            if experts is not None and _is_triton(experts):
                layer: Any = module.routed_experts
                shapes = layer.w13_weight.shape, layer.w2_weight.shape
                found.setdefault((*shapes, layer.top_k), _read_kernel(layer, experts, dtype))
    return list(found.values())


def _is_triton(experts: Any) -> bool:
    from vllm.model_executor.layers.fused_moe.experts.triton_moe import TritonExperts

    return isinstance(experts, TritonExperts)


def _read_kernel(layer: Any, experts: Any, dtype: torch.dtype) -> ExpertKernel:
    from vllm.model_executor.layers.fused_moe.fused_moe import try_get_optimal_moe_config

    up, down = layer.w13_weight.shape, layer.w2_weight.shape
    name = experts.quant_config.config_name(dtype)
    config = partial(try_get_optimal_moe_config, up, down, layer.top_k, name, block_shape=experts.block_shape)
    return ExpertKernel(up[0], layer.top_k, config, sorts_few=layer.expert_map is not None)


def run_steps(runner: OmniARRunnerMixin, steps: Sequence[int]) -> None:
    """Run a step of each of these numbers of tokens, without requests. Logs how long it took."""
    if not steps:
        return
    begin = time.monotonic()
    with torch.inference_mode():
        for tokens in steps:
            runner._dummy_run(tokens, skip_eplb=True, remove_lora=False)
    if runner.device.type == "cuda":
        torch.cuda.synchronize(runner.device)
    logger.info("warmed %d sizes of steps (%s) in %.1f s", len(steps), steps, time.monotonic() - begin)


def warm_steps(runner: OmniARRunnerMixin) -> None:
    """Run the steps that `steps_to_run` finds for a loaded model on a GPU; call it on every rank.

    If the model turned eager after vLLM had measured its memory, the largest step too: if it does not fit, that shows
    before a user's request.
    """
    if runner.device.type != "cuda":
        return
    eager = runner.serves_as_written
    padded = [] if eager else padded_sizes(runner.vllm_config)
    kernels = read_expert_kernels(runner.get_model(), runner.dtype)
    steps = steps_to_run(reachable_steps(runner.max_num_tokens, padded), padded, kernels)
    run_steps(runner, sorted({*steps, runner.max_num_tokens}) if eager else steps)


def _specialization(value: int) -> str:
    """Returns what Triton 3.6 and 3.7 compile an integer argument as."""
    return "one" if value == 1 else "multiple of 16" if value % 16 == 0 else "any"
