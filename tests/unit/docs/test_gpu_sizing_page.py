"""docs/gpu-sizing.md gives the figures that follow from the published sizes, the samples and vLLM's formulas."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks.gpu.memory.sharing import DOCUMENTED, load_release
from benchmarks.gpu.memory.sizes import awq_bytes, decoder_config, kv_shape, pipeline_memory, stage_memory
from benchmarks.gpu.memory.tables import PAGE, fill

from omni_cli.local.gpus import gpu_environments
from omni_proto.gpu_memory import GIB, find_problems
from omni_proto.pipeline import load_pipeline
from omni_proto.pipeline.read.offline import load_checked

SAMPLES = Path(__file__).parents[3] / "manifests" / "samples"
RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"
TEXT = PAGE.read_text(encoding="utf-8")


def test_the_tables_are_up_to_date() -> None:
    assert fill(TEXT) == TEXT, "run python -m benchmarks.gpu.memory.tables"


@pytest.mark.parametrize(("name", "release"), DOCUMENTED.items(), ids=DOCUMENTED)
def test_stages_that_share_fit_and_may_start_in_any_order(name: str, release: tuple[str, int]) -> None:
    """All stages of the sample fit on one GPU, in whichever order they start."""
    size, gib = release
    pipeline = load_checked(SAMPLES / f"{name}.yaml")
    assert find_problems(pipeline_memory(load_release(size), pipeline, device_bytes=gib * GIB), gib * GIB) == []
    found = gpu_environments(pipeline, ["0"])
    stages = [stage.name for stage in pipeline.spec.stages]
    assert {stage: one["CUDA_VISIBLE_DEVICES"] for stage, one in found.items()} == dict.fromkeys(stages, "0")


@pytest.mark.parametrize(
    ("name", "size", "usable"),
    [
        pytest.param("qwen25-omni", "7b", (31, 15, 15), id="32 GB for the thinker, 16 GB for the others"),
        pytest.param("qwen3-omni-30b-a3b", "30b-a3b", (78, 22, 22), id="80 GB for the thinker, 24 GB for the others"),
    ],
)
def test_on_gpus_of_their_own(name: str, size: str, usable: tuple[int, int, int]) -> None:
    """Each stage fits its GPU. The KV caches of thinker and talker hold at least 4 requests of maxModelLen tokens."""
    release, pipeline = load_release(size), load_checked(SAMPLES / f"{name}.yaml")
    for stage, gib in zip(pipeline.spec.stages, usable, strict=True):
        memory = stage_memory(release, stage, device_bytes=gib * GIB)
        assert find_problems([memory], gib * GIB) == []
        if stage.name in ("thinker", "talker"):
            shape = kv_shape(decoder_config(release, stage.name))
            assert shape.count_requests(memory.kv_cache, stage.engine_args.max_model_len or 0) >= 4
    found = gpu_environments(pipeline, ["0", "1", "2"])
    assert len({one["CUDA_VISIBLE_DEVICES"] for one in found.values()}) == 3


def test_the_7b_in_four_bits_on_a_small_gpu() -> None:
    """In 22 GiB of usable memory the 7B thinker fits only with AWQ weights."""
    large, pipeline = load_release("7b"), load_checked(SAMPLES / "qwen25-omni.yaml")
    thinker = pipeline.spec.stages[0]
    assert find_problems([stage_memory(large, thinker, device_bytes=22 * GIB)], 22 * GIB) != []
    assert (
        find_problems([stage_memory(large, thinker, device_bytes=22 * GIB, weights=awq_bytes(large))], 22 * GIB) == []
    )


def test_the_30b_as_it_was_seen_on_an_h200() -> None:
    """By the driver's count, each stage stays within its share. Thinker and talker use what was planned, within 2 %."""
    pipeline = load_checked(SAMPLES / "qwen3-omni-30b-a3b-one-gpu.yaml")
    planned = pipeline_memory(load_release("30b-a3b"), pipeline, device_bytes=139 * GIB)
    rows = json.loads((RESULTS / "gpu-h200.json").read_text(encoding="utf-8"))["results"]
    for memory in planned:
        seen = next(row["data"]["bytes"] for row in rows if row["name"] == f"speed.memory.{memory.name}")
        assert seen <= memory.share * 139 * GIB
        if memory.name != "code2wav":
            assert seen == pytest.approx(memory.total, rel=0.02)


def test_the_page_names_the_samples_and_the_driver() -> None:
    for name in ("qwen25-omni", "qwen3-omni-30b-a3b", *DOCUMENTED):
        assert f"manifests/samples/{name}.yaml" in TEXT
        assert load_pipeline(SAMPLES / f"{name}.yaml").metadata.name == name
    assert "driver 580 or newer" in TEXT
