"""vLLM's mixture-of-experts kernel compiles for every supported GPU, and its tiles fit into the GPU's shared memory.

Triton's compiler and the assembler that it brings need no GPU. code2wav's kernels have a test of their own.
"""

from __future__ import annotations

import ast
import importlib.util
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import triton.language as tl
from triton.compiler import ASTSource
from vllm.model_executor.layers.fused_moe import fused_moe

from support.models.kernels import SHARED_KIB, compile_for

MOE = Path(fused_moe.__file__)
EXPERTS, THINKER, TALKER, HIDDEN = 128, 768, 384, 2048
"""Qwen3-Omni-30B-A3B: experts, and the width of an expert in thinker and talker."""
CARDS = {"NVIDIA_H200": 90, "NVIDIA_H100_80GB_HBM3": 90, "NVIDIA_H20": 90, "NVIDIA_B200": 100}
"""Cards for which vLLM has tables of tiles. Others get its default tiles."""
POINTERS = dict.fromkeys(("a_ptr", "b_ptr", "c_ptr"), "*bf16") | {
    "topk_weights_ptr": "*fp32",
    "sorted_token_ids_ptr": "*i32",
    "expert_ids_ptr": "*i32",
    "num_tokens_post_padded_ptr": "*i32",
}
FIXED: dict[str, Any] = {
    **dict.fromkeys(("b_bias_ptr", "a_scale_ptr", "b_scale_ptr")),
    **dict.fromkeys(("use_fp8_w8a8", "use_int8_w8a8", "use_int8_w8a16", "per_channel_quant", "HAS_BIAS"), False),
    **dict.fromkeys(("SWAP_AB", "USE_TD", "naive_block_assignment", "MUL_ROUTED_WEIGHT"), False),
    **dict.fromkeys(("stride_ak", "stride_bk", "stride_cn", "SPLIT_K"), 1),
    "group_n": 0,
    "group_k": 0,
    "top_k": 8,
    "compute_type": tl.bfloat16,
}
Tile = tuple[tuple[str, int], ...]


@pytest.fixture(autouse=True)
def no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel of an earlier run would not be compiled."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


@cache
def kernel(folder: Path) -> Any:
    """Returns the kernel from vLLM's source. On a CPU vLLM replaces Triton by a placeholder when it is imported."""
    source = MOE.read_text(encoding="utf-8")
    wanted = {"write_zeros_to_output", "fused_moe_kernel"}
    parts = [
        "@triton.jit\n" + (ast.get_source_segment(source, node) or "")
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef) and node.name in wanted
    ]
    assert len(parts) == len(wanted), "vLLM has renamed the kernel"
    file = folder / "moe_kernel.py"
    file.write_text("import triton\nimport triton.language as tl\n\n\n" + "\n\n\n".join(parts), encoding="utf-8")
    spec = importlib.util.spec_from_file_location("moe_kernel", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.fused_moe_kernel


def check(function: Any, tile: Tile, capability: int) -> None:
    values = {**FIXED, **{name: size for name, size in tile if name.isupper()}}
    signature, constants, attributes = {}, {}, {}
    for index, name in enumerate(function.arg_names):
        if name in values:
            signature[name], constants[(index,)] = "constexpr", values[name]
        else:
            signature[name] = POINTERS.get(name, "i32")
            attributes[(index,)] = [["tt.divisibility", 16]]
    options = {name: size for name, size in tile if not name.isupper()}
    compile_for(capability, ASTSource(function, signature, constants, attributes), options)


def default_tiles() -> set[Tile]:
    """Returns vLLM's tiles for cards without a table, for steps of all sizes."""
    return {
        tile_of(fused_moe.get_default_config(tokens, EXPERTS, 2 * width, HIDDEN, 8, None))
        for width in (THINKER, TALKER)
        for tokens in (1, 8, 32, 64, 96, 128, 256, 512, 1024, 4096)
    }


def table_tiles(card: str) -> set[Tile]:
    """Returns the tiles of vLLM's tables for one card, of both stages if there are two."""
    files = [MOE.parent / "configs" / f"E={EXPERTS},N={width},device_name={card}.json" for width in (THINKER, TALKER)]
    tables = [json.loads(file.read_text()) for file in files if file.exists()]
    assert tables, f"vLLM has no table for {card} any more"
    return {tile_of(config) for table in tables for key, config in table.items() if key.isdigit()}


def tile_of(config: dict[str, int]) -> Tile:
    return tuple(sorted((name, size) for name, size in config.items() if name != "SPLIT_K"))


@pytest.mark.parametrize("capability", SHARED_KIB)
def test_the_largest_default_tile_fits(capability: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    function = kernel(tmp_path_factory.getbasetemp())
    largest = max(default_tiles(), key=lambda tile: [size for name, size in tile if name != "GROUP_SIZE_M"])
    check(function, largest, capability)


@pytest.mark.full
@pytest.mark.parametrize("capability", SHARED_KIB)
def test_every_default_tile_fits(capability: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    for tile in default_tiles():
        check(kernel(tmp_path_factory.getbasetemp()), tile, capability)


@pytest.mark.full
@pytest.mark.parametrize("card", CARDS)
def test_every_tile_of_a_cards_table_fits(card: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    for tile in table_tiles(card):
        check(kernel(tmp_path_factory.getbasetemp()), tile, CARDS[card])
