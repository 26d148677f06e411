"""Variables that the stage server's process sets before it imports vLLM, and when that process must not be forked."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

from omni_stage.vllm_adapter.process.env import apply_environment, usable_cpus
from omni_stage.vllm_adapter.process.template import cuda_is_in_use


def applied(tmp_path: Path, *devices: str, **given: str) -> dict[str, str]:
    for device in devices:
        (tmp_path / device).touch()
    apply_environment(given, tmp_path)
    return given


def test_threads_are_counted_where_there_is_no_gpu(tmp_path: Path) -> None:
    assert applied(tmp_path)["OMP_NUM_THREADS"] == str(usable_cpus())
    assert applied(tmp_path, OMP_NUM_THREADS="3")["OMP_NUM_THREADS"] == "3"


def test_with_a_gpu_vllm_may_drop_to_one_thread(tmp_path: Path) -> None:
    """vLLM 0.32 uses one thread unless OMP_NUM_THREADS is set (utils/torch_utils.py, set_torch_threads_for_runtime)."""
    assert "OMP_NUM_THREADS" not in applied(tmp_path, "nvidiactl")
    assert applied(tmp_path, "nvidiactl", OMP_NUM_THREADS="3")["OMP_NUM_THREADS"] == "3"


def test_no_kernel_is_compiled_to_sample_unless_asked_for(tmp_path: Path) -> None:
    assert applied(tmp_path)["VLLM_USE_FLASHINFER_SAMPLER"] == "0"
    assert applied(tmp_path, VLLM_USE_FLASHINFER_SAMPLER="1")["VLLM_USE_FLASHINFER_SAMPLER"] == "1"


def test_a_driver_that_any_library_initialized_is_seen(tmp_path: Path) -> None:
    """A library that is loaded is not yet in use: vLLM loads NVIDIA's to count GPUs."""
    driver = tmp_path / "libcuda-of-a-test.so.1"
    source = "static int code = 3; int cuInit(void) { return code = 0; } int cuCtxGetCurrent(void *at) { return code; }"
    subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-o", driver, "-"], input=source, text=True, check=True)
    assert not cuda_is_in_use(str(driver)), "it is not loaded"
    library = ctypes.CDLL(str(driver))
    assert not cuda_is_in_use(str(driver))
    library.cuInit()
    assert cuda_is_in_use(str(driver))
