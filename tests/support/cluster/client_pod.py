"""A pod from which tests call pipelines, with grpcurl and our client, which is in the operator's image."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from support.cluster.cluster import Cluster
from support.cluster.node.images import OPERATOR_IMAGE, ROOT
from support.cluster.workload import add_volume
from support.controlplane.pipelines import condition_of
from support.controlplane.server.api import Manifest, eventually
from support.processes.polling import PATIENCE_S

TOOLS = "tools"
_ANSWERED = "answered\n"
TARGET = "dns:///tiny-omni-headless.speech.svc.cluster.local.:50051"
"""The address of the three-stage sample inside the cluster. Clients connect to each pod of the entry stage."""
_SUPPORT = Path(__file__).parent


def start_client(cluster: Cluster, namespace: str) -> ClientPod:
    """Returns a running client pod. Also makes the claim `tools`, which the pod mounts."""
    tools = cluster.layout.run / "tools"
    tools.mkdir(exist_ok=True)
    grpcurl = subprocess.run([ROOT / "tools/grpcurl.sh"], capture_output=True, text=True, check=True).stdout.strip()
    shutil.copy(grpcurl, tools / "grpcurl")
    add_volume(cluster, namespace, TOOLS, tools)
    pod = ClientPod(cluster, namespace)
    pod.start()
    return pod


class ClientPod:
    """Runs programs in a pod that satisfies Pod Security `restricted`. The claim `tools` has grpcurl."""

    def __init__(self, cluster: Cluster, namespace: str, name: str = "client") -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._name = name

    def start(self) -> None:
        """Makes the pod and waits until it is Ready."""
        api = self._cluster.admin.in_namespace(self._namespace)
        api.apply(self._manifest())
        eventually(
            lambda: condition_of(api.get("Pod", self._name), "Ready").get("status") == "True",
            why="the client's pod runs",
            timeout_s=PATIENCE_S,
        )

    def ask(self, target: str, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Returns the pipeline's answers. ask.py sends the requests one at a time."""
        answers: list[dict[str, Any]] = json.loads(
            self.python("ask.py", {"target": target, "requests": requests}, timeout_s=300)
        )
        return answers

    def python(self, script: str, stdin: object, *, timeout_s: float) -> str:
        """Runs a script of this folder with `stdin` as JSON. Returns its output."""
        code = (_SUPPORT / script).read_text()
        return self.run("python", "-c", code, stdin=json.dumps(stdin), timeout_s=timeout_s)

    def grpcurl(self, *arguments: str, stdin: str = "") -> str:
        """Runs grpcurl. Returns its output."""
        return self.run("/tools/grpcurl", "-plaintext", *arguments, stdin=stdin, timeout_s=120)

    def run(self, *command: str, stdin: str = "", timeout_s: float = PATIENCE_S) -> str:
        """Runs a program. Returns its whole output. Raises AssertionError if the program fails or needs too long.

        `kubectl exec` may lose the end of what a program wrote just before it ended, and then succeeds
        (kubernetes/kubernetes#124571). So whole.py runs the program, and ends once this side has read everything.
        """
        code = (_SUPPORT / "whole.py").read_text()
        process = subprocess.Popen(
            self._in_pod("python", "-c", code, *command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        if process.stdin is None or process.stdout is None:
            raise AssertionError("kubectl has no pipes")
        guard = threading.Timer(timeout_s, process.kill)
        guard.start()
        try:
            asked = stdin.encode()
            with contextlib.suppress(BrokenPipeError):  # kubectl says why on stderr, which the error below has.
                process.stdin.write(b"%d\n%b" % (len(asked), asked))
                process.stdin.flush()
            size = process.stdout.readline()
            answer = process.stdout.read(int(size)) if size else b""
            _, errors = process.communicate()
        finally:
            guard.cancel()
            process.kill()
        if not size or len(answer) < int(size):
            raise AssertionError(f"{command[0]} gave {len(answer)} of {size!r} bytes in {timeout_s} s: {errors!r}")
        told = json.loads(answer)
        if told["returncode"]:
            raise AssertionError(f"{command} ended with {told['returncode']}: {told['stderr']}")
        return str(told["stdout"])

    def start_python(self, script: str, arguments: object) -> subprocess.Popen[str]:
        """Starts a script of this folder with `arguments` as JSON. The end of the returned process's stdin ends it."""
        code = (_SUPPORT / script).read_text()
        return subprocess.Popen(
            self._in_pod("python", "-c", code, json.dumps(arguments)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def start_python_on_node(self, script: str, arguments: object) -> subprocess.Popen[str]:
        """Starts a script as start_python does, but on the node: a kubelet's restart would end `kubectl exec`."""
        code = (_SUPPORT / script).read_text()
        return subprocess.Popen(
            ["nsenter", f"--net={self._cluster.layout.network}", sys.executable, "-c", code, json.dumps(arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def _in_pod(self, *command: str) -> list[str]:
        """Returns the arguments of kubectl that run a program in the pod."""
        kubectl = [str(self._cluster.binaries["kubectl"]), "--kubeconfig", str(self._cluster.kubeconfig)]
        return [*kubectl, "--namespace", self._namespace, "exec", "--stdin", self._name, "--", *command]

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
    """Concurrent callers for as long as the `with` block runs, in the client pod or (with `on_node`) on the node.

    `answered`, `failures` and `longest_s` are set after the block.
    """

    script = "load.py"

    def __init__(
        self,
        client: ClientPod,
        target: str,
        *,
        streams: int = 2,
        max_tokens: int = 16,
        timeout_s: float = PATIENCE_S,
        most_rest_s: float = 1.0,
        on_node: bool = False,
    ) -> None:
        """`most_rest_s`: longest pause of a caller after an answer; otherwise it pauses as long as the answer took."""
        self._start = client.start_python_on_node if on_node else client.start_python
        self._settings: dict[str, Any] = {
            "target": target,
            "streams": streams,
            "max_tokens": max_tokens,
            "timeout_s": timeout_s,
            "most_rest_s": most_rest_s,
        }
        self._lines: list[str] = []
        self.answered = 0
        self.failures: list[dict[str, Any]] = []
        self.longest_s = 0.0

    def __enter__(self) -> Self:
        self._process = self._start(self.script, self._settings)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        # Importing a client takes seconds on a busy machine, which the block must not spend without any load.
        self._wait_until(lambda: bool(self._lines), "the load starts")
        return self

    def wait_answered(self, calls: int) -> None:
        """Waits until `calls` more calls have been answered."""
        wanted = self._lines.count(_ANSWERED) + calls
        self._wait_until(lambda: self._lines.count(_ANSWERED) >= wanted, f"{calls} more calls are answered")

    def _wait_until(self, holds: Callable[[], bool], why: str, timeout_s: float = PATIENCE_S) -> None:
        """Waits for a state of the load, or for its early end, which __exit__ reports."""
        eventually(lambda: holds() or self._process.poll() is not None, why=why, timeout_s=timeout_s)

    def _has_told(self) -> bool:
        return self._lines[-1:] != [] and self._lines[-1].startswith("{")

    def _read(self) -> None:
        for line in self._process.stdout or ():
            self._lines.append(line)

    def __exit__(self, *_: object) -> None:
        try:
            with contextlib.suppress(BrokenPipeError):
                print("end", file=self._process.stdin, flush=True)
            self._wait_until(self._has_told, "the load ends", self._settings["timeout_s"] + 60)
        finally:
            self._process.kill()
        if not self._has_told():
            errors = self._process.stderr.read() if self._process.stderr is not None else ""
            raise AssertionError(f"the load ended with {self._process.wait()}: {errors}")
        told = json.loads(self._lines[-1])
        self.answered, self.failures, self.longest_s = told["answered"], told["failures"], told["longest_s"]


class OpenAiLoad(Load):
    """Concurrent callers that use OpenAI's own client on the node."""

    script = "openai_load.py"

    def __init__(
        self, client: ClientPod, url: str, model: str, *, streams: int = 3, timeout_s: float = PATIENCE_S
    ) -> None:
        """`url` is the gateway's, including /v1."""
        super().__init__(client, url, streams=streams, timeout_s=timeout_s, on_node=True)
        self._settings |= {"url": url, "model": model}
