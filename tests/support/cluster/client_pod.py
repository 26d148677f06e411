"""A pod from which tests call pipelines: our client (the operator's image has it) and grpcurl."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

from support.cluster.cluster import Cluster
from support.cluster.images import OPERATOR_IMAGE, ROOT
from support.cluster.workload import add_volume
from support.controlplane.api import Manifest, eventually
from support.controlplane.pipelines import condition_of

TOOLS = "tools"
TARGET = "dns:///tiny-omni-headless.speech.svc.cluster.local.:50051"
"""The sample of three stages, as pods call it: a connection to each pod of the entry."""
_SUPPORT = Path(__file__).parent


def start_client(cluster: Cluster, namespace: str) -> ClientPod:
    """Returns a client's pod, with the claim that it needs; it runs."""
    tools = cluster.layout.run / "tools"
    tools.mkdir(exist_ok=True)
    grpcurl = subprocess.run([ROOT / "scripts/grpcurl.sh"], capture_output=True, text=True, check=True).stdout.strip()
    shutil.copy(grpcurl, tools / "grpcurl")
    add_volume(cluster, namespace, TOOLS, tools)
    pod = ClientPod(cluster, namespace)
    pod.start()
    return pod


class ClientPod:
    """Runs programs in a pod that fits Pod Security `restricted`. The claim `tools` holds grpcurl."""

    def __init__(self, cluster: Cluster, namespace: str, name: str = "client") -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._name = name

    def start(self) -> None:
        """Make the pod and wait until it runs."""
        api = self._cluster.admin.in_namespace(self._namespace)
        api.apply(self._manifest())
        eventually(
            lambda: condition_of(api.get("Pod", self._name), "Ready").get("status") == "True",
            why="the client's pod runs",
            timeout_s=60,
        )

    def ask(self, target: str, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Answers of the pipeline, one request at a time (ask.py)."""
        answers: list[dict[str, Any]] = json.loads(
            self.python("ask.py", {"target": target, "requests": requests}, timeout_s=300)
        )
        return answers

    def python(self, script: str, stdin: object, *, timeout_s: float) -> str:
        """Run a script of this folder with `stdin` as JSON; what it prints."""
        code = (_SUPPORT / script).read_text()
        return self.run("python", "-c", code, stdin=json.dumps(stdin), timeout_s=timeout_s)

    def grpcurl(self, *arguments: str, stdin: str = "") -> str:
        """Run grpcurl; what it prints."""
        return self.run("/tools/grpcurl", "-plaintext", *arguments, stdin=stdin, timeout_s=120)

    def run(self, *command: str, stdin: str = "", timeout_s: float = 60) -> str:
        """Run a program; what it prints. Raises AssertionError if it fails."""
        return self._cluster.kubectl(
            "exec", "--stdin", self._name, "--", *command, stdin=stdin, namespace=self._namespace, timeout_s=timeout_s
        ).stdout

    def start_python(self, script: str, arguments: object) -> subprocess.Popen[str]:
        """Start a script of this folder that reads JSON from its first argument; it ends when its stdin is closed."""
        code = (_SUPPORT / script).read_text()
        command = [str(self._cluster.binaries["kubectl"]), "--kubeconfig", str(self._cluster.kubeconfig)]
        command += ["--namespace", self._namespace, "exec", "--stdin", self._name, "--"]
        return subprocess.Popen(
            [*command, "python", "-c", code, json.dumps(arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def start_python_on_node(self, script: str, arguments: object) -> subprocess.Popen[str]:
        """Returns the same on the node, beside the pods: what runs in a pod is cut off when the kubelet restarts."""
        code = (_SUPPORT / script).read_text()
        return subprocess.Popen(
            ["nsenter", f"--net={self._cluster.layout.network}", sys.executable, "-c", code, json.dumps(arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def _manifest(self) -> Manifest:
        container = {
            "name": "client",
            "image": OPERATOR_IMAGE,
            "imagePullPolicy": "Never",
            "command": ["python", "-c", "import signal; signal.pause()"],
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            },
            "volumeMounts": [{"name": TOOLS, "mountPath": "/tools", "readOnly": True}],
        }
        spec = {
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 0,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 10001,
                "runAsGroup": 10001,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [container],
            "volumes": [{"name": TOOLS, "persistentVolumeClaim": {"claimName": TOOLS, "readOnly": True}}],
        }
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": self._name, "namespace": self._namespace},
            "spec": spec,
        }


class Load:
    """Callers in the client's pod, from entering the block to leaving it; then `answered` and `failures` are known."""

    script = "load.py"

    def __init__(
        self,
        client: ClientPod,
        target: str,
        *,
        streams: int = 2,
        max_tokens: int = 16,
        timeout_s: float = 60,
        on_node: bool = False,
    ) -> None:
        self._start = client.start_python_on_node if on_node else client.start_python
        self._settings: dict[str, Any] = {
            "target": target,
            "streams": streams,
            "max_tokens": max_tokens,
            "timeout_s": timeout_s,
        }
        self.answered = 0
        self.failures: list[dict[str, Any]] = []
        self.longest_s = 0.0

    def __enter__(self) -> Self:
        self._process = self._start(self.script, self._settings)
        return self

    def __exit__(self, *_: object) -> None:
        output, errors = self._process.communicate(timeout=self._settings["timeout_s"] + 60)
        if self._process.returncode:
            raise AssertionError(f"the load ended with {self._process.returncode}: {errors}")
        told = json.loads(output)
        self.answered, self.failures, self.longest_s = told["answered"], told["failures"], told["longest_s"]


class OpenAiLoad(Load):
    """Callers with OpenAI's own client on the node."""

    script = "openai_load.py"

    def __init__(self, client: ClientPod, url: str, model: str, *, streams: int = 3, timeout_s: float = 60) -> None:
        """url: of the gateway, with /v1."""
        super().__init__(client, url, streams=streams, timeout_s=timeout_s, on_node=True)
        self._settings = {"url": url, "model": model, "streams": streams, "timeout_s": timeout_s}
