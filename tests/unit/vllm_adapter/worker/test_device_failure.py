"""Whether a failure in a step is the request's own fault, or means that the device no longer works."""

from __future__ import annotations

import pytest
import torch

from omni_stage.errors import EngineDeadStageError, InvalidTensorError, ModelExecutionError, OmniStageError
from omni_stage.vllm_adapter.diffusion.runner import judge_failure, probe_device


class Device:
    """A probe of a device that works, or that raises `fault`. Counts its calls in `probes`."""

    def __init__(self, fault: Exception | None = None) -> None:
        self.fault = fault
        self.probes = 0

    def __call__(self) -> None:
        self.probes += 1
        if self.fault is not None:
            raise self.fault


CUBLAS = RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling cublasSgemm")
CASES = {
    # name: (what the model raised, number of probes, class of the request's error, words in its message)
    "our own error": (InvalidTensorError("codes: too many"), 0, InvalidTensorError, "codes: too many"),
    "out of memory": (torch.OutOfMemoryError("tried to allocate"), 0, ModelExecutionError, "too little memory"),
    "a shape that does not fit": (RuntimeError("mat1 and mat2: 3x4"), 1, ModelExecutionError, "(RuntimeError)"),
    "cuBLAS on a device that works": (CUBLAS, 1, ModelExecutionError, "(RuntimeError)"),
}


@pytest.mark.parametrize("name", CASES)
def test_what_a_working_device_leaves_is_the_requests(name: str) -> None:
    """If the device works, the failure is the request's own."""
    error, probes, kind, words = CASES[name]
    device = Device()
    verdict: OmniStageError = judge_failure(error, device)
    assert type(verdict) is kind
    assert words in str(verdict)
    assert device.probes == probes


@pytest.mark.parametrize(
    "fault", [torch.AcceleratorError("illegal memory access"), RuntimeError("CUDNN_STATUS_NOT_INITIALIZED")]
)
def test_a_device_that_fails_its_probe_ends_the_engine(fault: Exception) -> None:
    with pytest.raises(EngineDeadStageError, match="stopped working") as caught:
        judge_failure(CUBLAS, Device(fault))
    assert caught.value.__cause__ is CUBLAS
    assert "cublasSgemm" not in str(caught.value)
    # The same error is raised again for the batch's other requests, and is not judged to be their fault.
    with pytest.raises(EngineDeadStageError):
        judge_failure(caught.value, Device())


def test_a_lost_context_needs_no_probe() -> None:
    device = Device()
    with pytest.raises(torch.AcceleratorError):
        judge_failure(torch.AcceleratorError("device-side assert"), device)
    assert device.probes == 0


def test_the_cpu_is_not_probed() -> None:
    probe_device(torch.device("cpu"))
