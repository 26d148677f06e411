"""The errors for an old driver and for CUDA's own messages, as an administrator sees them."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest
import torch

from omni_stage.vllm_adapter.checks.gpu_driver import explain_cuda_failure, find_driver_problem

_SITE = Path(torch.__file__).parents[1]
LIBRARIES = {
    "torch": [_SITE / "torch" / "lib" / "libc10_cuda.so"],
    "cuda": sorted((_SITE / "nvidia").glob("cu*/lib/libcudart.so.*")),
}
MESSAGES = [
    ("torch", "Found no NVIDIA driver on your system", "no GPU can be seen"),
    ("torch", "The NVIDIA driver on your system is too old", "needs driver 580 or newer"),
    ("cuda", "CUDA driver version is insufficient for CUDA runtime version", "needs driver 580 or newer"),
    ("cuda", "forward compatibility was attempted on non supported HW", "needs driver 580 or newer"),
    ("cuda", "no kernel image is available for execution on the device", "has no kernels for this GPU"),
]


@pytest.mark.parametrize(
    ("driver", "torch_cuda", "words"),
    [
        (13000, "13.0", ""),
        (13010, "13.0", ""),
        (13000, "13.2", ""),
        (12080, "13.0", "runs CUDA 12.8 at most. torch here is built for CUDA 13.0, which needs driver 580 or newer"),
        (11040, "12.8", "runs CUDA 11.4 at most. torch here is built for CUDA 12.8, which needs driver 525 or newer"),
        (13000, "14.1", "which needs a driver of CUDA 14: update the node's driver"),
        (12080, None, ""),
    ],
    ids=["equal", "newer", "older minor", "older major", "CUDA 12", "unknown major", "no CUDA"],
)
def test_driver(driver: int, torch_cuda: str | None, words: str) -> None:
    problem = find_driver_problem(driver, torch_cuda)
    assert words in problem
    assert bool(words) == bool(problem)


@pytest.mark.parametrize(("library", "text", "meaning"), MESSAGES, ids=[text[:30] for _, text, _ in MESSAGES])
def test_messages_of_the_installed_libraries(library: str, text: str, meaning: str) -> None:
    found = False
    for path in LIBRARIES[library]:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            found = found or content.find(text.encode()) >= 0
    assert found
    assert meaning in explain_cuda_failure(f"RuntimeError: {text} (found version 12040).", "13.0")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU, so torch does not fail")
def test_what_torch_says_here_is_understood() -> None:
    with pytest.raises(RuntimeError) as failure:
        torch.cuda.init()
    assert "no GPU can be seen" in explain_cuda_failure(str(failure.value), torch.version.cuda)


def test_other_failures_are_left_alone() -> None:
    assert explain_cuda_failure("CUDA out of memory", "13.0") == ""
