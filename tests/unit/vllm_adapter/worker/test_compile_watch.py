"""Kernels that are compiled after a stage is ready are counted, by vLLM's real hooks in Triton."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from triton import knobs
from vllm.utils import jit_monitor

from omni_stage.vllm_adapter.worker.compile_watch import CompileWatch


def compile_a_kernel() -> None:
    """Does what Triton does after it has compiled a kernel for the first time."""
    hook = knobs.runtime.jit_post_compile_hook
    if hook is not None:
        hook(fn=SimpleNamespace(name="kernel"), compile={}, key="", repr="")


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> CompileWatch:
    """A watch whose hooks are removed after the test."""
    monkeypatch.setattr(knobs.runtime, "jit_post_compile_hook", None)
    monkeypatch.setattr(jit_monitor, "_active", False)
    # vLLM's CPU build does not use Triton, but the package and its hooks are there.
    monkeypatch.setattr(jit_monitor, "HAS_TRITON", True)
    monkeypatch.setattr(jit_monitor, "_handle_jit_event", jit_monitor._handle_jit_event)
    return CompileWatch()


def test_only_what_comes_after_ready_counts(watch: CompileWatch) -> None:
    watch.install()
    jit_monitor.activate()
    compile_a_kernel()
    assert watch.compiled == 0, "the stage is not ready"
    watch.begin()
    compile_a_kernel()
    compile_a_kernel()
    watch.begin()
    assert watch.compiled == 2, "vLLM logs the first one only"


def test_eager_stages_count_too(watch: CompileWatch) -> None:
    """vLLM does not activate its monitor with enforce_eager."""
    watch.begin()
    compile_a_kernel()
    assert watch.compiled == 1
