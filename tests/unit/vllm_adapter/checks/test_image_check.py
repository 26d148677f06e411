"""The problems for which the build of the GPU image fails."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from omni_stage.vllm_adapter.checks.image import Findings, list_problems, try_compiler

DOCKERFILE = (Path(__file__).parents[4] / "Dockerfile").read_text(encoding="utf-8")
GOOD = Findings(
    cuda="13.0",
    required="cuda>=13.0",
    flashinfer=False,
    precompiled=(),
    compilers={"cc": "", "c++": ""},
    imports={"omni_stage.service.server.stage_server": ""},
    user=10001,
)
PRECOMPILED = ("flashinfer_cubin", "flashinfer_jit_cache")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, []),
        ({"flashinfer": True, "precompiled": PRECOMPILED}, []),
        ({"flashinfer": True}, ["set VLLM_USE_FLASHINFER_SAMPLER=0, or install flashinfer_cubin"]),
        ({"flashinfer": True, "precompiled": PRECOMPILED[:1]}, ["leave flashinfer-python out"]),
        ({"cuda": None}, ["torch is built without CUDA"]),
        ({"cuda": "14.1"}, ["NVIDIA_REQUIRE_CUDA is 'cuda>=13.0', torch is built for CUDA 14.1: set cuda>=14.0"]),
        ({"required": ""}, ["NVIDIA_REQUIRE_CUDA is ''"]),
        ({"compilers": {"cc": "", "c++": "it is not installed"}}, [r"c\+\+ does not work: it is not installed"]),
        ({"imports": {"vllm": "ImportError: libcuda.so.1"}}, ["vllm cannot be imported: ImportError: libcuda.so.1"]),
        ({"user": 0}, ["this check ran as root"]),
    ],
    ids=["good", "precompiled", "FlashInfer", "half", "CPU build", "newer", "unset", "c++", "import", "root"],
)
def test_problems(change: dict[str, Any], words: list[str]) -> None:
    problems = list_problems(dataclasses.replace(GOOD, **change))
    assert len(problems) == len(words)
    for problem, expected in zip(problems, words, strict=True):
        assert re.search(expected, problem)


def test_a_compiler_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert try_compiler("cc") == "it is not installed"


def test_a_compiler_that_fails_without_a_word(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    silent = tmp_path / "cc"
    silent.write_text("#!/bin/sh\nexit 3\n")
    silent.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert try_compiler("cc") == "it ended with exit code 3"


def test_the_dockerfile_runs_it_as_the_images_user() -> None:
    stage = DOCKERFILE[DOCKERFILE.index("AS stage-gpu") :]
    user, check = stage.index("USER 10001:10001"), stage.index("python -m omni_stage.vllm_adapter.checks.image")
    assert user < check
    assert "g++" in stage
    assert "--override constraints/overrides-gpu.txt pyproject.toml --extra gpu" in DOCKERFILE
    set_lines = [line for line in DOCKERFILE.splitlines() if not line.startswith("#")]
    assert not any("NVIDIA_VISIBLE_DEVICES" in line for line in set_lines)


def test_the_required_driver_is_that_of_the_pinned_torch() -> None:
    constraints = (Path(__file__).parents[4] / "constraints" / "gpu.txt").read_text(encoding="utf-8")
    runtime = re.search(r"^nvidia-cuda-runtime==(\d+)\.(\d+)", constraints, re.MULTILINE)
    required = re.search(r'NVIDIA_REQUIRE_CUDA="cuda>=(\d+)\.(\d+)"', DOCKERFILE)
    assert runtime is not None
    assert required is not None
    assert (required[1], required[2]) == (runtime[1], "0")
