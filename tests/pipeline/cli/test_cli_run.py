"""`omnipipe run` with a real stage server and engine: it leaves no process behind, and names the stage that failed."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from omni_cli.local.guard import ProcessId, list_running, list_tree
from support.processes.pipelines import OMNIPIPE, OmnipipeRun, run_pipeline, session_of
from support.processes.polling import PATIENCE_S, wait_until

pytestmark = pytest.mark.pipeline

ONE_STAGE = """
apiVersion: omnipipeline.io/v1alpha1
kind: OmniPipeline
metadata: {name: one}
spec:
  model: {uri: "file:///models/tiny-omni"}
  stages:
  - name: thinker
    component: qwen2_5_omni/thinker
    engineArgs: {maxModelLen: 512, dtype: float32, kvCacheMemoryMib: 64, enforceEager: true}
    outputs: [Text]
"""


@pytest.fixture
def one_stage(tmp_path: Path) -> Path:
    path = tmp_path / "one.yaml"
    path.write_text(ONE_STAGE)
    return path


def list_stage_processes(running: OmnipipeRun) -> set[ProcessId]:
    """Returns stage servers, engines and helpers: the descendants of `omnipipe` that are not in its session."""
    own = os.getsid(running.process.pid)
    return {one for one in list_tree(own) if session_of(one.pid) not in (own, None)}


def wait_until_gone(processes: set[ProcessId]) -> None:
    wait_until(lambda: not list_running(processes), PATIENCE_S, lambda: f"still there: {list_running(processes)}")


@pytest.mark.full  # test_cli_supervisor kills `omnipipe run`, and test_faults_processes real stage servers
def test_sigkill_of_omnipipe_leaves_neither_stage_nor_engine(
    one_stage: Path, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    with run_pipeline(one_stage, tiny_checkpoint, tmp_path) as running:
        processes = list_stage_processes(running)
        # At least the guard, the stage server and its engine core.
        assert len(processes) >= 3
        running.process.kill()
        running.process.wait(PATIENCE_S)
        wait_until_gone(processes)


@pytest.mark.full  # test_faults_processes kills engines, and test_cli_supervisor ends stages below `omnipipe run`
def test_death_of_the_engine_ends_the_run_and_names_the_stage(
    one_stage: Path, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    with run_pipeline(one_stage, tiny_checkpoint, tmp_path) as running:
        processes = list_stage_processes(running)
        os.kill(running.engine_core("thinker"), signal.SIGKILL)
        assert running.process.wait(PATIENCE_S) == 1
        wait_until_gone(processes)
    log = (tmp_path / "run.log").read_text()
    assert "stage thinker ended with exit code 70" in log
    assert "last lines of" in log


def test_stage_that_cannot_start_says_why(one_stage: Path, tiny_checkpoint: Path, tmp_path: Path) -> None:
    one_stage.write_text(ONE_STAGE.replace("qwen2_5_omni/thinker", "qwen2_5_omni/singer"))
    command = [
        OMNIPIPE,
        "run",
        str(one_stage),
        "--model-dir",
        str(tiny_checkpoint),
        "--log-dir",
        str(tmp_path / "logs"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3 * PATIENCE_S, check=False)
    assert done.returncode == 1
    assert "stage thinker ended with exit code 78" in done.stderr
    assert "qwen2_5_omni/singer" in done.stderr
    assert "qwen2_5_omni/thinker" in done.stderr, "the known ids are listed"
