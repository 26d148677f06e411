"""A new pod takes what another one has compiled: the compilers' own cache folders are empty at each start."""

from __future__ import annotations

import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from omni_proto.pod_contract import COMPILE_CACHE_VARIABLE, COMPILED_FOLDERS
from omni_proto.stage_config import StageConfig
from support.processes.polling import PATIENCE_S, wait_until
from support.processes.stage_processes import StageProcess

# Each start compiles for a minute, or takes the archive.
pytestmark = [pytest.mark.engine, pytest.mark.full]
LOADED = re.compile(r"engine started .*'load': ([0-9.]+)")


def test_the_second_start_compiles_less(make_tiny_checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    """Prints the seconds until ready, and those to load the engine, of starts in turn: with an archive and without."""
    config = StageConfig.model_validate(
        {
            "pipeline": "compiled",
            "stage": "thinker",
            "component": "qwen2_5_omni/thinker",
            "model": {"path": str(make_tiny_checkpoint(0, "gqa"))},
            "outputs": ["Text"],
            "listen": {"host": "127.0.0.1", "grpcPort": 0, "healthPort": 0, "metricsPort": 0},
            "engineArgs": {"maxModelLen": 512, "maxNumSeqs": 8, "dtype": "float32", "kvCacheMemoryMib": 64}
            | {"enforceEager": False},
        }
    )
    shared = tmp_path / "shared"
    shared.mkdir()
    logs = []
    for number, has_volume in enumerate((True, True, False, True)):
        folder = tmp_path / f"pod{number}"
        folder.mkdir()
        environment = {variable: str(folder / name) for variable, name in COMPILED_FOLDERS.items()}
        if has_volume:
            environment[COMPILE_CACHE_VARIABLE] = str(shared)
        began = time.monotonic()
        with StageProcess([config], folder, environment=environment) as process:
            process.start()
            took = time.monotonic() - began
            # A stage that is ready saves what it compiled.
            wait_until(lambda: any(shared.glob("*.tar")))
            process.send(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 0
        logs.append(process.read_log())
        loaded = LOADED.search(logs[-1])
        sys.stdout.write(f"start {number}, volume {has_volume}: {took:.1f} s, load {loaded and loaded[1]} s\n")
    assert ["compiled code restored" in log for log in logs] == [False, True, False, True]
    assert "compiled code saved" in logs[0]
    assert list(shared.glob("*.tar"))
