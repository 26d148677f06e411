"""`make playground`: a private control plane with the operator, and a shell in it. Needs neither a cluster nor root.

    python -m support.controlplane.playground [COMMAND ...]

With arguments, runs that command. Without arguments, starts a shell if stdin is a terminal, and otherwise runs the
commands on stdin. The exit status is that of the command or shell. Everything is removed afterwards.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from support.controlplane.binaries import BinariesMissingError
from support.controlplane.control_plane import ControlPlane
from support.controlplane.operators import OperatorProcess

ROOT = Path(__file__).resolve().parents[3]
CRDS = ROOT / "manifests" / "crd"
SAMPLE = ROOT / "manifests" / "samples" / "qwen25-omni.yaml"
GPUS = 8


def main(arguments: Sequence[str]) -> int:
    """Starts everything, runs the command or a shell, and stops everything. Returns the exit status."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="omnipipeline-playground-") as temporary:
        directory = Path(temporary)
        try:
            plane = ControlPlane(directory / "control-plane", crds=sorted(CRDS.glob("*.yaml")), gpus=GPUS)
        except BinariesMissingError as error:
            _say(str(error))
            return 1
        _say("starting etcd, the API server, controllers, scheduler, kwok and the operator ...")
        with plane:
            plane.add_volume_claim("default", "models")  # the sample mounts this claim
            operator = OperatorProcess(plane.kubeconfig, directory)
            with operator:
                _say(_welcome(plane, operator, time.monotonic() - started))
                return _run(arguments, _environment(plane, directory), directory)


def _welcome(plane: ControlPlane, operator: OperatorProcess, seconds: float) -> str:
    return (
        f"ready in {seconds:.0f} s: a node with {GPUS} GPUs. kwok simulates the pods; everything else is real.\n"
        f"  kubectl apply -f {SAMPLE.relative_to(ROOT)}\n"
        "  kubectl get omni -w\n"
        "  kubectl wait --for=condition=Ready omni --all && kubectl get deployments,services,pods\n"
        f"operator's log: {operator.log}; API server: {plane.url}; leave with exit"
    )


def _environment(plane: ControlPlane, directory: Path) -> dict[str, str]:
    # PATH: first kubectl of the cluster's version, then omnipipe and python of the checkout's virtual environment.
    tools = directory / "bin"
    tools.mkdir()
    (tools / "kubectl").symlink_to(plane.binaries["kubectl"])
    path = os.pathsep.join((str(tools), str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    return {**os.environ, "KUBECONFIG": str(plane.kubeconfig), "PATH": path}


def _run(arguments: Sequence[str], environment: Mapping[str, str], directory: Path) -> int:
    if arguments:
        command = list(arguments)
    elif sys.stdin.isatty():
        command = _shell(directory)
    else:
        command = ["sh", "-s"]
    status = subprocess.run(command, cwd=ROOT, env=dict(environment), check=False).returncode
    return 128 - status if status < 0 else status


def _shell(directory: Path) -> list[str]:
    """Returns the command of the user's shell. bash gets a prompt that shows the playground."""
    shell = os.environ.get("SHELL", "/bin/sh")
    if Path(shell).name != "bash":
        return [shell]
    rc = directory / "bashrc"
    own = Path.home() / ".bashrc"
    # The user's rc file may change PATH, so ours is set after it.
    rc.write_text(
        f"[ -r {shlex.quote(str(own))} ] && . {shlex.quote(str(own))}\n"
        f'export PATH={shlex.quote(str(directory / "bin"))}:"$PATH"\n'
        "PS1='(playground) \\w \\$ '\n"
    )
    return [shell, "--rcfile", str(rc), "-i"]


def _say(message: str) -> None:
    sys.stderr.write(message + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
