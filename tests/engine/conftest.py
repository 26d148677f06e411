"""vLLM reads the environment when it is imported: set it before a test module imports the engine.

The fixtures are those of the runner of autoregressive stages: a module that uses them says as which ARCHITECTURE its
checkpoint is loaded, and what the runner CAPTURED, which goes into its settings.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from omni_stage.vllm_adapter.process.env import apply_environment

apply_environment()

from support.async_on_cpu import SCHEDULING, text_engine  # noqa: E402
from support.tiny_text import Reference, TextEngine, write_text_checkpoint  # noqa: E402
from support.toy_models import register_toy_models  # noqa: E402


@pytest.fixture(scope="module")
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Qwen2 checkpoint that vLLM loads as the module's ARCHITECTURE."""
    register_toy_models()
    return write_text_checkpoint(tmp_path_factory.mktemp("text"), architecture=request.module.ARCHITECTURE)


@pytest.fixture(scope="module")
def reference(checkpoint: Path) -> Reference:
    """transformers' model of the checkpoint."""
    return Reference(checkpoint)


@pytest.fixture(scope="module", params=SCHEDULING)
def engine(checkpoint: Path, request: pytest.FixtureRequest) -> Iterator[TextEngine]:
    """An engine of this process, once with each way of scheduling."""
    with text_engine(checkpoint, request.param, request.module.CAPTURED) as engine:
        yield engine
