"""Writes the tables of docs/gpu-sizing.md from the published sizes and the samples.

python -m benchmarks.gpu.memory.tables
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from benchmarks.gpu.memory.sharing import load_release
from benchmarks.gpu.memory.sizes import (
    Release,
    awq_bytes,
    decoder_config,
    format_row,
    kv_shape,
    pipeline_memory,
    stage_memory,
)
from omni_proto.gpu_memory import GIB, PeakMemory
from omni_proto.pipeline import OmniPipeline, load_pipeline

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "gpu-sizing.md"
_HEAD = (
    "| stage | weights | KV cache | activations, graphs | CUDA | sum | share | is GiB |",
    "|---|---|---|---|---|---|---|---|",
)
_MARK = "<!-- {name} -->"


def render_tables() -> dict[str, str]:
    """Returns the tables as Markdown, by the name that marks a table's place in the page."""
    large, small = load_release("7b"), load_release("3b")
    three, one, little = (_sample(name) for name in ("qwen25-omni", "qwen25-omni-one-gpu", "qwen25-omni-3b"))
    omni = load_release("30b-a3b")
    shared, apart = _sample("qwen3-omni-30b-a3b-one-gpu"), _sample("qwen3-omni-30b-a3b")
    thinker = three.spec.stages[0]
    awq = stage_memory(large, thinker, device_bytes=22 * GIB, weights=awq_bytes(large))
    return {
        "three GPUs": _table(large, three, pipeline_memory(large, three, device_bytes=44 * GIB), 44),
        "one GPU": _table(large, one, pipeline_memory(large, one, device_bytes=78 * GIB), 78),
        "Qwen3-Omni, one GPU": _table(omni, shared, pipeline_memory(omni, shared, device_bytes=139 * GIB), 139),
        "Qwen3-Omni, three GPUs": _table(omni, apart, pipeline_memory(omni, apart, device_bytes=78 * GIB), 78),
        "24 GB": _table(small, little, pipeline_memory(small, little, device_bytes=22 * GIB), 22),
        "AWQ": _table(large, three, [awq], 22),
    }


def _sample(name: str) -> OmniPipeline:
    return load_pipeline(ROOT / "manifests" / "samples" / f"{name}.yaml")


def _table(release: Release, pipeline: OmniPipeline, stages: list[PeakMemory], gib: int) -> str:
    lines = [*_HEAD, *(format_row(stage, gib * GIB) for stage in stages), ""]
    lengths = {stage.name: stage.engine_args.max_model_len for stage in pipeline.spec.stages}
    for stage in stages:
        length = lengths.get(stage.name)
        if stage.kv_cache and length:
            shape = kv_shape(decoder_config(release, stage.name))
            tokens = shape.count_blocks(stage.kv_cache) * 16
            held = shape.count_requests(stage.kv_cache, length)
            lines.append(
                f"The {stage.name}'s cache: {shape.token_bytes // 1024} KiB a token, {tokens:,} tokens, "
                f"{held:.1f} requests of {length:,} tokens.  "
            )
    return "\n".join(lines).rstrip()


def fill(text: str) -> str:
    """Returns the page with new tables between their marks. Raises ValueError if the marks of a table are missing."""
    for name, table in render_tables().items():
        mark = re.escape(_MARK.format(name=name))
        text, count = re.subn(
            f"({mark}\n).*?(\n{mark})",
            lambda match, table=table: f"{match[1]}\n{table}\n{match[2]}",
            text,
            flags=re.DOTALL,
        )
        if count != 1:
            raise ValueError(f"{PAGE.name} has no place for the table {name!r}: two lines {_MARK.format(name=name)}")
    return text


if __name__ == "__main__":
    before = PAGE.read_text(encoding="utf-8")
    after = fill(before)
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(after, encoding="utf-8")
    sys.exit(int("--check" in sys.argv[1:] and after != before))
