"""Fixtures of all tests: vLLM's environment variables, set before vLLM is imported, and tiny checkpoints."""

from __future__ import annotations

import gc
import os

# vLLM and transformers read these when they are imported.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("DO_NOT_TRACK", "1")
os.environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", "0")
# A test process shares its cores with the engines that it starts: waiting threads must not spin.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

# Importing vLLM leaves 700,000 objects, which live until the process ends. A collection that looks at all of them takes
# 0.4 s of CPU, and vLLM asks for several at each start and end of an engine. So nothing is collected while test modules
# are imported, and the hook below leaves the imported objects out of later collections.
gc.disable()


def pytest_collection_finish() -> None:
    """Lets the garbage collector run again, but leaves out all objects that exist now, until the process ends.

    vLLM freezes all objects at an engine's start, and at its end unfreezes all of them and collects garbage twice. So
    from here on, freezing and unfreezing do nothing: collections then look only at what the tests made.
    """
    gc.freeze()
    gc.enable()
    gc.freeze = gc.unfreeze = _leave_as_it_is


def _leave_as_it_is() -> None:
    """Stands in for gc.freeze and gc.unfreeze."""


@pytest.fixture(autouse=True)
def _keeps_its_priority() -> Iterator[None]:
    """Fails a test that lowers the priority of pytest's main thread, since all later tests would starve beside others.

    A process without privileges cannot raise it again.
    """
    before = os.getpriority(os.PRIO_PROCESS, 0)
    yield
    after = os.getpriority(os.PRIO_PROCESS, 0)
    if after != before:
        pytest.fail(f"the test left pytest with niceness {after}, before {before}; run what lowers it in a thread")


@pytest.fixture(scope="session")
def make_tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Returns make(seed, shape, family) -> directory. Each checkpoint is written once a session.

    The dtype in its config.json is float32, so that tests can compare tokens exactly: in bfloat16, sums depend on the
    batch. The weights are stored as in a release, with values that float32 represents exactly.
    """
    written: dict[tuple[int, str, str], Path] = {}

    def make(seed: int = 0, shape: str = "small", family: str = "qwen2_5_omni") -> Path:
        key = (seed, shape, family)
        if key not in written:
            from omni_stage.models.registry import resolve, tiny_checkpoints

            write: Any = resolve(tiny_checkpoints()[family].writer, what="the writer")
            directory = tmp_path_factory.mktemp(f"tiny-{family}-{shape}-{seed}")
            written[key] = write(directory, seed=seed, shape=shape, dtype="float32")
        return written[key]

    return make


@pytest.fixture(scope="session")
def tiny_checkpoint(make_tiny_checkpoint: Callable[..., Path]) -> Path:
    """Returns the tiny checkpoint of seed 0 and shape "small"."""
    return make_tiny_checkpoint()
