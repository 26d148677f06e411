"""Every variant of a kernel that a scheduled step can run has run before the stage is ready.

`ExpertKernel.variants` repeats vLLM's arithmetic, so the first test compares it with what vLLM itself would launch.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import pytest
import torch
from vllm.model_executor.layers.fused_moe import fused_moe, moe_align_block_size
from vllm.model_executor.layers.fused_moe.experts.triton_moe import TritonExperts

from omni_stage.vllm_adapter.ar.warm_steps import ExpertKernel, find_variants, reachable_steps, steps_to_run

CAPTURED = (1, 2, 4, *range(8, 129, 8))
"""vLLM's capture sizes for max_num_seqs 64."""
MAXIMUM = 4096
THINKER = (128, 8, 768)
TALKER = (128, 6, 384)
"""Experts, experts of a token, intermediate size: Qwen3-Omni-30B-A3B."""


@pytest.fixture(params=["NVIDIA_H100_80GB_HBM3", "NVIDIA_H200", "NVIDIA_B200", "no table for this GPU"])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name by which vLLM finds its table of tuned sizes; without a table it computes them."""
    name: str = request.param
    use_table(name, monkeypatch)
    return name


def use_table(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_moe, "get_device_name_as_file_name", lambda: name)
    fused_moe.get_moe_configs.cache_clear()


def kernel(experts: int, top_k: int, size: int) -> ExpertKernel:
    up, down = (experts, 2 * size, 2048), (experts, 2048, size)

    def find_config(tokens: int) -> Any:
        return fused_moe.try_get_optimal_moe_config(up, down, top_k, None, tokens)

    return ExpertKernel(experts, top_k, find_config)


@pytest.mark.parametrize("shape", [THINKER, TALKER])
def test_the_variants_are_what_vllm_launches(
    shape: tuple[int, int, int], device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs vLLM's own code up to the launch, which is recorded in place of the kernel, for sizes around every limit."""
    experts, top_k, _ = shape
    ours = kernel(*shape)
    launches: list[dict[str, Any]] = []

    class Recorder:
        def __getitem__(self, grid: Any) -> Any:
            return lambda *args, **constants: launches.append({"EM": args[12], "pairs": args[13], **constants})

    monkeypatch.setattr(fused_moe, "fused_moe_kernel", Recorder())
    monkeypatch.setattr(moe_align_block_size.ops, "moe_align_block_size", lambda *args, **kwargs: None)

    def launched(tokens: int) -> set[Hashable]:
        config = ours.find_config(tokens)
        chosen = torch.zeros(tokens, top_k, dtype=torch.int32)
        order, owners, padded = fused_moe._prepare_expert_assignment(chosen, dict(config), tokens, top_k, experts, None)
        found: set[Hashable] = set()
        for product, rows, each in (("up", tokens, top_k), ("down", tokens * top_k, 1)):
            launches.clear()
            fused_moe.invoke_fused_moe_triton_kernel(
                torch.empty(rows, 64, dtype=torch.bfloat16),
                torch.empty(experts, 64, 64, dtype=torch.bfloat16, device="meta"),
                torch.empty(tokens, top_k, 64, dtype=torch.bfloat16, device="meta"),
                None,
                None,
                torch.empty(tokens, top_k),
                order,
                owners,
                padded,
                False,
                each,
                dict(config),
                compute_type=torch.bfloat16,
                use_fp8_w8a8=False,
                use_int8_w8a8=False,
                use_int8_w8a16=False,
                use_int4_w4a16=False,
                per_channel_quant=False,
            )
            (call,) = launches
            special = [
                "one" if n == 1 else "multiple of 16" if n % 16 == 0 else "any" for n in (call["EM"], call["pairs"])
            ]
            found.add((product, frozenset(config.items()), call["naive_block_assignment"], *special))
        return found

    for tokens in (*range(1, 140), *range(250, 262), 1000, 1023, 1024, 1536, 2049, 4095, 4096):
        assert ours.variants(tokens) == launched(tokens), tokens


@pytest.mark.parametrize("captured", [CAPTURED, ()], ids=["graphs", "eager"])
@pytest.mark.parametrize("shape", [THINKER, TALKER])
def test_nothing_that_can_be_scheduled_is_left_cold(
    shape: tuple[int, int, int], captured: tuple[int, ...], device: str
) -> None:
    kernels = [kernel(*shape)]
    reachable = reachable_steps(MAXIMUM, captured)
    steps = steps_to_run(reachable, captured, kernels)
    warm = {variant for tokens in (*captured, *steps) for variant in find_variants(tokens, kernels)}
    assert not {variant for tokens in reachable for variant in find_variants(tokens, kernels)} - warm
    assert set(steps) <= set(reachable)
    assert len(steps) <= 32, "a start runs few steps"


def test_what_vllm_alone_leaves_cold(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM runs the captured sizes and the largest step: on an H200 prompts of other sizes meet variants of neither."""
    use_table("NVIDIA_H200", monkeypatch)
    for shape, eager in ((THINKER, 27), (TALKER, 24)):
        kernels = [kernel(*shape)]
        assert len(steps_to_run(reachable_steps(MAXIMUM, CAPTURED), (*CAPTURED, MAXIMUM), kernels)) == 8
        assert len(steps_to_run(reachable_steps(MAXIMUM, ()), (MAXIMUM,), kernels)) == eager


def test_reachable_steps() -> None:
    """Steps are padded to captured sizes up to the largest of them, and run as they are above it."""
    assert reachable_steps(10, [4, 1, 2]) == [1, 2, 4, 5, 6, 7, 8, 9, 10]
    assert reachable_steps(3, []) == [1, 2, 3]
    assert reachable_steps(3, [2, 8]) == [2, 3]


def test_a_model_without_experts_runs_one_size_of_each_kind() -> None:
    assert steps_to_run(reachable_steps(64, [1, 2, 4, 8]), [1, 2, 4, 8], []) == [16]
    assert steps_to_run(reachable_steps(64, []), [], []) == [1, 2, 16]


def test_the_attributes_that_are_read_exist() -> None:
    """What `read_expert_kernels` reads exists in the installed vLLM; no CPU builds these kernels."""
    from vllm.model_executor.layers.fused_moe.fused_moe_method_base import FusedMoEMethodBase
    from vllm.model_executor.layers.fused_moe.modular_kernel import FusedMoEKernel
    from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
    from vllm.model_executor.layers.fused_moe.runner.moe_runner import MoERunner

    assert isinstance(MoERunner._quant_method, property)
    assert "moe_kernel" in FusedMoEMethodBase.__init__.__code__.co_names
    assert isinstance(FusedMoEKernel.fused_experts, property)
    assert isinstance(TritonExperts.block_shape, property)
    assert isinstance(RoutedExperts.expert_map, property)
    assert "top_k" in RoutedExperts.__init__.__code__.co_names
