"""`make playground` lets a user try the operator with one command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.processes.polling import PATIENCE_S

pytestmark = pytest.mark.controlplane

TESTS = Path(__file__).resolve().parents[2]
COMMANDS = """
set -e
kubectl apply -f manifests/samples/qwen25-omni.yaml
kubectl wait --for=condition=Ready omni/qwen25-omni --timeout=120s
kubectl get omni
omnipipe status qwen25-omni
exit 7
"""


def test_commands_from_the_standard_input() -> None:
    command = [sys.executable, "-m", "support.controlplane.playground"]
    done = subprocess.run(
        command, cwd=TESTS, input=COMMANDS, capture_output=True, text=True, timeout=4 * PATIENCE_S, check=False
    )
    assert done.returncode == 7, done.stderr[-2000:]
    assert "condition met" in done.stdout
    assert "AllStagesReady" in done.stdout
    assert "thinker" in done.stdout
    assert "kubectl get omni" in done.stderr
