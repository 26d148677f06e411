"""`omnipipe status` shows the status that the operator wrote to a real API server."""

from __future__ import annotations

import subprocess
import sys

import pytest

from support.controlplane.control_plane import ControlPlane
from support.controlplane.operators import OperatorProcess
from support.controlplane.pipelines import build_pipeline, stage_of, wait_condition, wait_settled
from support.controlplane.server.api import Api
from support.processes.polling import PATIENCE_S

pytestmark = pytest.mark.controlplane


def test_a_pipeline_is_drawn_with_its_failure_and_without(
    control_plane: ControlPlane, api: Api, operator: OperatorProcess
) -> None:
    def status(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "omni_cli", "status", *arguments, "-n", api.namespace]
        command += ["--kubeconfig", str(control_plane.kubeconfig)]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE_S, check=False, env={"COLUMNS": "400", "PATH": ""}
        )

    broken = build_pipeline()
    stage_of(broken, "talker")["image"] = "example.com/does-not-exist:1"
    api.apply(broken)
    wait_condition(api, "Ready", status="False", reason="ImagePullBackOff", timeout_s=PATIENCE_S)
    drawn = status("omni").stdout
    assert "ImagePullBackOff" in drawn
    assert "talker  0/1 ready" in drawn
    assert "image example.com/does-not-exist:1 cannot be pulled" in drawn
    api.replace_spec(build_pipeline())
    wait_settled(api)
    lines = status("omni").stdout.splitlines()
    assert [line.split()[:3] for line in lines[1:4]] == [
        ["Ready", "True", "AllStagesReady"],
        ["Progressing", "False", "RolloutComplete"],
        ["Degraded", "False", "AsExpected"],
    ]
    assert [line.strip("└─ ").split("  ")[0] for line in lines[4:]] == [
        "● thinker",
        "Full -> ● talker",
        "Full -> ● token2wav",
    ]
    missing = status("nothing")
    assert missing.returncode == 1
    assert "no pipeline 'nothing'" in missing.stderr
