"""The installed version of vLLM reads every VLLM_ variable that our code and the benchmarks name."""

from __future__ import annotations

import re
from pathlib import Path

from vllm import envs

import omni_stage

SOURCES = (Path(omni_stage.__file__).parent, Path(__file__).parents[4] / "benchmarks")


def test_vllm_reads_every_variable_that_we_set() -> None:
    named = {
        name
        for source in SOURCES
        for path in sorted(source.rglob("*.py"))
        for name in re.findall(r"\bVLLM_[A-Z0-9_]+", path.read_text(encoding="utf-8"))
    }
    assert "VLLM_WORKER_MULTIPROC_METHOD" in named
    assert named - set(envs.environment_variables) == set()
