"""The commands of docs/runbooks with their placeholders filled in, on a control plane with a pipeline and its operator.

Commands that need more than that are left out: NEEDS_MORE matches those that need a kubelet, a Secret, cert-manager,
Prometheus' operator, or an operator that runs as a Deployment.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.controlplane.binaries import find_binaries
from support.controlplane.control_plane import ControlPlane
from support.controlplane.operators import OperatorProcess
from support.controlplane.pipelines import build_pipeline, wait_settled
from support.controlplane.server.api import Api
from support.docs.doc_examples import ROOT, console_commands
from support.processes.polling import PATIENCE_S

pytestmark = pytest.mark.controlplane

NEEDS_MORE = re.compile(r"kubectl (logs|exec|rollout|get secret|get certificate|get podmonitor)")


def all_commands() -> list[str]:
    pages = sorted((ROOT / "docs" / "runbooks").glob("*.md"))
    return sorted({command for page in pages for found in console_commands(page).values() for command in found})


def test_commands_of_the_runbooks(
    control_plane: ControlPlane, api: Api, operator: OperatorProcess, tmp_path: Path
) -> None:
    api.apply(build_pipeline())
    wait_settled(api)
    (pod,) = [item["metadata"]["name"] for item in api.list("Pod", labels="omnipipeline.io/stage=talker")]
    words = {
        "OPERATOR_NAMESPACE": api.namespace,
        "NAMESPACE": api.namespace,
        "NAME": "omni",
        "STAGE": "talker",
        "POD": pod,
    }
    folders = [find_binaries("kubectl")["kubectl"].parent, Path(sys.executable).parent]
    environment = {
        **os.environ,
        "KUBECONFIG": str(control_plane.kubeconfig),
        "PATH": os.pathsep.join([*map(str, folders), os.environ["PATH"]]),
    }
    commands = [command for command in all_commands() if not NEEDS_MORE.search(command)]
    assert len(commands) >= 10
    failed = []
    for command in commands:
        line = re.sub(r"\b[A-Z_]{3,}\b", lambda word: words.get(word[0], word[0]), command)
        done = subprocess.run(
            ["sh", "-c", line], capture_output=True, text=True, timeout=PATIENCE_S, env=environment, check=False
        )
        # Only queries for the operator, the gateway or for events may find nothing: here the operator is not a pod,
        # there is no gateway, and kwok's pods have no events.
        nothing = "No resources found" in done.stderr and not re.search("events|operator|gateway", line)
        if done.returncode or nothing:
            failed.append(f"{line}: {done.returncode}: {done.stdout}{done.stderr}")
    assert failed == []
