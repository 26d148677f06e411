"""The installed version of vLLM reads every VLLM_ variable that our code names."""

from __future__ import annotations

import re
from pathlib import Path

from vllm import envs

import omni_stage

SOURCES = Path(omni_stage.__file__).parent


def test_vllm_reads_every_variable_that_we_set() -> None:
    named = {
        name
        for path in sorted(SOURCES.rglob("*.py"))
        for name in re.findall(r'"(VLLM_[A-Z0-9_]+)"', path.read_text(encoding="utf-8"))
    }
    assert "VLLM_WORKER_MULTIPROC_METHOD" in named
    assert named - set(envs.environment_variables) == set()
