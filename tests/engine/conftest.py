"""Sets vLLM's environment variables and defines the fixtures of the tests of the autoregressive runner.

vLLM reads the environment when it is imported, so the variables are set before a test module imports the engine.
A module that uses the fixtures defines ARCHITECTURE, the model class that its checkpoint names, and CAPTURED, the
runner's settings for capturing rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from omni_stage.vllm_adapter.process.env import apply_environment

apply_environment()

from support.engines.async_on_cpu import SCHEDULING, text_engine  # noqa: E402
from support.engines.tiny_text import Reference, TextEngine, write_text_checkpoint  # noqa: E402
from support.engines.toy_models import register_toy_models  # noqa: E402


@pytest.fixture(scope="module")
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Qwen2 checkpoint that vLLM loads as the module's ARCHITECTURE."""
    register_toy_models()
    return write_text_checkpoint(tmp_path_factory.mktemp("text"), architecture=request.module.ARCHITECTURE)


@pytest.fixture(scope="module")
def reference(checkpoint: Path) -> Reference:
    """The checkpoint loaded by transformers."""
    return Reference(checkpoint)


@pytest.fixture(scope="module", params=SCHEDULING)
def engine(checkpoint: Path, request: pytest.FixtureRequest) -> Iterator[TextEngine]:
    """An engine in this process: each test runs once per kind of scheduling (synchronous, asynchronous)."""
    with text_engine(checkpoint, request.param, request.module.CAPTURED) as engine:
        yield engine
