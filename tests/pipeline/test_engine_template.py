"""A stage's engine is forked from a template process that has imported everything.

Where a fork would be unsafe, because the process has threads, the engine is spawned instead.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from omni_cli.local.guard import list_running
from omni_proto.client import OmniClient
from omni_proto.stage_config import ModelSource, StageConfig
from support.models.generic_checkpoint import write_tiny_text_checkpoint
from support.processes.polling import PATIENCE_S, wait_until
from support.processes.stage_processes import StageProcess

pytestmark = pytest.mark.pipeline

SPAWNED = "engines are spawned, not forked"
SAMPLING = {"llm": {"temperature": 0, "max_tokens": 8, "ignore_eos": True}}


def make_stage(folder: Path, **environment: str) -> StageProcess:
    model = ModelSource(path=str(write_tiny_text_checkpoint(folder / "model")))
    listen = {"host": "127.0.0.1", "grpcPort": 0, "healthPort": 0, "metricsPort": 0}
    engine = {"dtype": "float32", "maxModelLen": 64, "kvCacheMemoryMib": 4, "enforceEager": True}
    config = StageConfig.model_validate(
        {"pipeline": "text", "stage": "llm", "component": "generic/llm", "model": model.model_dump()}
        | {"outputs": ["Text"], "listen": listen, "engineArgs": engine}
    )
    return StageProcess([config], folder, environment=environment)


def ask(process: StageProcess) -> str:
    with OmniClient(f"127.0.0.1:{process.ports['llm']['grpc']}") as client:
        return client.run(raw_text="Hello", sampling=SAMPLING).text


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.fixture(scope="module")
def forked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[StageProcess, str]]:
    """A stage whose engine is forked, and its answer. The first test ends the stage."""
    with pytest.MonkeyPatch.context() as patch:
        # Each of these variables keeps NumPy from starting threads. `make test` sets one of them, and this process
        # the other. A pod may set neither, so the stage must prevent the threads itself (vllm_adapter/process/env.py).
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            patch.delenv(name, raising=False)
        stage = make_stage(tmp_path_factory.mktemp("forked")).start()
    with stage as process:
        yield process, ask(process)


def test_a_forked_engine_answers_and_ends_with_its_template(forked: tuple[StageProcess, str]) -> None:
    process, answer = forked
    with process:
        assert answer
        assert SPAWNED not in process.read_log()
        template = parent_of(process.engine_core())
        assert parent_of(template) == process.pid
        # Template and engine are not in the stage server's process group, so a SIGTERM to that group does not end them
        # while the server drains.
        assert os.getpgid(template) != os.getpgid(process.pid) != os.getpgid(process.engine_core())
        below = process.list_tree()
        os.kill(template, signal.SIGKILL)
        assert process.wait(PATIENCE_S) == 70, "the exit code for a dead engine"
        wait_until(lambda: not list_running(below), why=lambda: list_running(below))


@pytest.mark.full  # tests/engine/generic/test_llm_engine_processes.py also spawns its engine
def test_a_process_with_threads_spawns_its_engine(forked: tuple[StageProcess, str], tmp_path: Path) -> None:
    _, expected = forked
    # NumPy's BLAS starts its threads when it is imported.
    with make_stage(tmp_path, OPENBLAS_NUM_THREADS="2").start() as process:
        assert SPAWNED in process.read_log()
        assert parent_of(process.engine_core()) == process.pid
        assert ask(process) == expected
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
