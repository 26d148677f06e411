"""Why an engine's process did not start reaches the stage server, in the words of the stage's configuration."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import vllm
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend
from vllm.v1.core.kv_cache_utils import _check_enough_kv_cache_memory
from vllm.v1.worker.utils import request_memory, select_common_block_size

from omni_stage.errors import ConfigurationError, EngineDeadStageError, OmniStageError
from omni_stage.vllm_adapter.core.async_llm import explain_start_error
from omni_stage.vllm_adapter.process.start_errors import (
    _LOGGED,
    StartError,
    collecting_start_errors,
    report_start_errors,
)

GIB = 1 << 30
CORE, WORKER = _LOGGED


def cache_of(free: int, needed: int) -> Callable[[], Any]:
    return lambda: _check_enough_kv_cache_memory(free, lambda: needed, 40960, lambda _: 21000)


def share_of(free: int) -> Callable[[], Any]:
    snapshot: Any = SimpleNamespace(total_memory=22 * GIB, free_memory=free, device_="cuda:0")
    settings: Any = SimpleNamespace(gpu_memory_utilization=0.92)
    return lambda: request_memory(snapshot, settings)


def fail(error: Exception) -> Callable[[], Any]:
    def call() -> Any:
        raise error

    return call


def explain(call: Callable[[], Any]) -> OmniStageError:
    with pytest.raises((ValueError, RuntimeError, MemoryError)) as caught:
        call()
    return explain_start_error(StartError(type(caught.value).__name__, str(caught.value)), "13.0")


# The messages are vLLM's own, so that a version with other words is noticed here.
@pytest.mark.parametrize(
    ("call", "kind", "field", "words"),
    [
        pytest.param(
            cache_of(2 * GIB, 6 * GIB),
            ConfigurationError,
            "engineArgs.maxModelLen",
            ("40960", "6.0 GiB KV cache", "maximum model length is 21000", "decreasing engineArgs.maxModelLen"),
            id="the cache is too small for one request",
        ),
        pytest.param(
            cache_of(0, 6 * GIB),
            ConfigurationError,
            "engineArgs.gpuMemoryUtilization",
            ("No available memory for the cache blocks", "increasing engineArgs.gpuMemoryUtilization"),
            id="nothing is left for the cache",
        ),
        pytest.param(
            share_of(5 * GIB),
            EngineDeadStageError,
            "",
            ("5.0/22.0 GiB", "Decrease engineArgs.gpuMemoryUtilization"),
            id="another process holds the memory",
        ),
        pytest.param(
            lambda: select_common_block_size(16, [CPUAttentionBackend]),
            ConfigurationError,
            "engineArgs.blockSize",
            ("the attention backend does not support engineArgs.blockSize 16 (CPU_ATTN: [MultipleOf(32)])",),
            id="blocks of a size that the backend lacks",
        ),
        pytest.param(
            fail(MemoryError("CUDA out of memory. Tried to allocate 1.02 GiB. GPU 0 has 22.06 GiB in total.")),
            EngineDeadStageError,
            "",
            ("Tried to allocate 1.02 GiB", "a larger GPU"),
            id="out of memory",
        ),
        pytest.param(
            fail(RuntimeError("CUDA error: no kernel image is available for execution on the device")),
            ConfigurationError,
            "nvidia.com/gpu",
            ("compute capability is too old or too new",),
            id="a GPU without kernels",
        ),
        pytest.param(
            fail(RuntimeError("Could not find nvcc" + " and more" * 200)),
            EngineDeadStageError,
            "",
            ("RuntimeError: Could not find nvcc", "the log above has the traceback"),
            id="anything else",
        ),
    ],
)
def test_the_cause_and_the_remedy(
    call: Callable[[], Any], kind: type[OmniStageError], field: str, words: tuple[str, ...]
) -> None:
    error = explain(call)
    assert (type(error), error.details.field) == (kind, field)
    for expected in words:
        assert expected in str(error)
    assert "`" not in str(error), "no setting by vLLM's name"
    assert len(str(error).encode()) < 1024, "it fits a termination message"


def test_the_first_logged_error_is_reported() -> None:
    """When one process fails, the processes that wait for it log errors of their own."""
    report_start_errors()
    report_start_errors()
    with collecting_start_errors() as find:
        assert find() is None
        log(WORKER, "another message", RuntimeError("while it serves"))
        assert find() is None
        log(WORKER, _LOGGED[WORKER], ConfigurationError("no such tensor", field="model.path"))
        log(CORE, _LOGGED[CORE], RuntimeError("a worker ended"))
        found = find()
    assert found == StartError("ConfigurationError", "no such tensor", "model.path")
    error = explain_start_error(found, None)
    assert (type(error), str(error), error.details.field) == (ConfigurationError, "no such tensor", "model.path")
    log(CORE, _LOGGED[CORE], RuntimeError("nobody listens"))


def log(name: str, message: str, error: Exception) -> None:
    try:
        raise error
    except Exception:
        logging.getLogger(name).exception(message)


def test_vllm_logs_these_messages() -> None:
    root = Path(vllm.__file__).parent.parent
    for name, message in _LOGGED.items():
        source = (root / f"{name.replace('.', '/')}.py").read_text(encoding="utf-8")
        assert f'logger.exception("{message}")' in source
