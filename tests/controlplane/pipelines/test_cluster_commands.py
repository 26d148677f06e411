"""The commands for pipelines in a cluster, as a user runs them: real API server and operator, real stage servers.

The stages run as processes, with the logs of pods. kwok serves their ports and logs as the kubelets of their pods.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from omni_cli.commands.run import find_models
from omni_cli.local.pipeline import STAGE_COMMAND, LocalOptions, LocalPipeline
from omni_cli.local.progress import make_progress
from omni_proto.pipeline import load_pipeline
from omni_proto.pod_contract import GRPC_PORT, METRICS_PORT
from support.controlplane.control_plane import ControlPlane
from support.controlplane.operators import OperatorProcess
from support.controlplane.pipelines import STAGE_LABEL, wait_settled
from support.controlplane.pod_streams import PodStream, serve_pods, write_container_log
from support.controlplane.server.api import Api, Manifest
from support.peers.certificates import Authority, tls_files
from support.processes.polling import PATIENCE_S, wait_until

pytestmark = pytest.mark.controlplane

SAMPLE = Path(__file__).parents[3] / "manifests" / "samples" / "sim-omni.yaml"
STAGES = ["thinker", "talker", "decoder"]
Run = Callable[..., subprocess.CompletedProcess[str]]


@contextmanager
def serving(
    api: Api, control_plane: ControlPlane, folder: Path, tls_dir: Path | None = None
) -> Iterator[Callable[[], None]]:
    """Serves the sample's pods until the block ends. Yields a function that brings their logs up to date."""
    pipeline = load_pipeline(SAMPLE)
    command = (*STAGE_COMMAND, "--log-format", "json")
    options = LocalOptions(find_models(pipeline), log_dir=folder / "logs", tls_dir=tls_dir, stage_command=command)
    pods = {pod["metadata"]["labels"][STAGE_LABEL]: pod for pod in api.list("Pod")}
    with LocalPipeline(pipeline, options) as local:
        with make_progress(Console(quiet=True), STAGES) as progress:
            local.start(progress)

        def copy_logs() -> None:
            for stage in STAGES:
                write_container_log((folder / "logs" / f"{stage}.log").read_text(), folder / f"{stage}.cri.log")

        copy_logs()
        streams = [
            PodStream(
                pods[stage],
                {GRPC_PORT: local.addresses[stage].grpc, METRICS_PORT: local.addresses[stage].metrics},
                folder / f"{stage}.cri.log",
            )
            for stage in STAGES
        ]
        with serve_pods(control_plane, streams, folder):
            yield copy_logs


@pytest.fixture
def omnipipe(api: Api, control_plane: ControlPlane) -> Run:
    """Returns a function that runs the command with the administrator's kubeconfig in the test's namespace."""

    def run(*arguments: str, code: int = 0, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "omni_cli", *arguments, "-n", api.namespace],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
            env={**os.environ, "KUBECONFIG": str(control_plane.kubeconfig), "COLUMNS": "200", "NO_COLOR": "1"},
        )
        assert done.returncode == code, (arguments, done.returncode, done.stdout, done.stderr)
        return done

    return run


def says_ended(log: str, request: str) -> bool:
    """Returns whether a stage's log has the line of the request's end, which may come after the client's answer."""
    return any("request ended" in line and request in line for line in log.splitlines())


def sample(**entry: Any) -> Manifest:
    document: Manifest = yaml.safe_load(SAMPLE.read_text())
    document["spec"]["entry"] = entry
    return document


def test_a_request_is_sent_found_and_measured(
    api: Api, control_plane: ControlPlane, operator: OperatorProcess, omnipipe: Run, tmp_path: Path
) -> None:
    assert "no pipelines" in omnipipe("list").stderr
    api.apply(sample())
    wait_settled(api, "sim-omni")
    listed = omnipipe("list").stdout.splitlines()
    assert listed[0].split() == ["NAMESPACE", "NAME", "READY", "REASON", "STAGES", "URL"]
    assert listed[1].split()[:5] == [api.namespace, "sim-omni", "True", "AllStagesReady", "3/3"]
    with serving(api, control_plane, tmp_path) as copy_logs:
        answer = tmp_path / "answer.json"
        asked = ("--pipeline", "sim-omni", "--max-tokens", "8", "--sampling", "talker.max_tokens=50")
        text = omnipipe("generate", *asked, "--text", "Hello.", "--json", str(answer)).stdout
        found = json.loads(answer.read_text())
        assert len(text.split()) == 8
        assert found["audio"]["seconds"] > 0
        assert (
            len(omnipipe("chat", "--pipeline", "sim-omni", "--max-tokens", "8", stdin="Hello.\n").stdout.split()) == 8
        )
        request = found["request_id"]
        logs = [tmp_path / "logs" / f"{stage}.log" for stage in STAGES]
        wait_until(lambda: all(says_ended(log.read_text(), request) for log in logs))
        copy_logs()
        lines = json.loads(omnipipe("logs", request, "-o", "json").stdout)
        assert {line["stage"] for line in lines if line["message"] == "request ended"} == set(STAGES)
        assert {line["request_id"] for line in lines} == {request}
        assert [line["time"] for line in lines] == sorted(line["time"] for line in lines)
        shown = omnipipe("logs", "talker", "--pipeline", "sim-omni").stdout.splitlines()
        assert shown
        assert {line.split()[1] for line in shown} == {"talker"}
        assert "no line of nobody" in omnipipe("logs", "nobody", code=1).stderr
        rows = json.loads(omnipipe("top", "sim-omni", "--interval", "0.2", "-o", "json").stdout)
        assert [row["stage"] for row in rows] == STAGES
        assert all(row["ready"] and not row["problem"] for row in rows)
        assert rows[0]["audio_per_s"] == 0
        assert rows[0]["kv"] is not None
    gone = omnipipe("generate", *asked, "--text", "Hello.", code=1).stderr
    assert gone.startswith("error: cannot forward port 50051 of pod sim-omni-thinker-")
    assert gone.endswith("connection refused\n")


def test_an_entry_with_tls_is_reached_with_the_secrets_ca(
    api: Api, control_plane: ControlPlane, operator: OperatorProcess, omnipipe: Run, tmp_path: Path
) -> None:
    authority = Authority("entry")
    files = tls_files(authority.issue(hosts=(f"sim-omni.{api.namespace}.svc",)), authority.certificate)
    directory = tmp_path / "tls"
    directory.mkdir()
    for name, content in files.items():
        (directory / name).write_bytes(content)
    data = {name: base64.b64encode(content).decode() for name, content in files.items()}
    api.apply({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "sim-tls"}, "data": data})
    api.apply(sample(tls={"secretName": "sim-tls"}))
    wait_settled(api, "sim-omni")
    with serving(api, control_plane, tmp_path, directory):
        asked = ("generate", "--pipeline", "sim-omni", "--max-tokens", "8", "--modality", "text", "--text", "Hello.")
        assert len(omnipipe(*asked).stdout.split()) == 8
        other = tmp_path / "other.crt"
        other.write_bytes(Authority("another").certificate)
        assert "CERTIFICATE_VERIFY_FAILED" in omnipipe(*asked, "--ca", str(other), code=1).stderr


def test_the_doctor_names_what_will_fail(
    api: Api, control_plane: ControlPlane, operator: OperatorProcess, omnipipe: Run
) -> None:
    """The quota has no room."""
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}
    api.apply(quota)
    found = json.loads(omnipipe("doctor", "-o", "json", code=1).stdout)
    by_check = {(one["check"], one["level"]): one for one in found}
    assert by_check["kubernetes", "ok"]["text"].startswith("v1.")
    assert ("crd", "ok") in by_check
    assert "operator" in {one["check"] for one in found}
    assert "64 nvidia.com/gpu" in {one["text"] for one in found}
    assert "exceeded quota: none" in by_check["admission", "error"]["text"]
    assert by_check["quotas", "warning"]["text"] == "none has no room left: pods"
    assert "you may create omnipipelines" in {one["text"] for one in found}
    assert api.list("Pod") == []
    assert "exceeded quota" in omnipipe("doctor", code=1).stdout


def test_the_doctor_says_what_it_may_not_read(api: Api, control_plane: ControlPlane, omnipipe: Run) -> None:
    kubeconfig = control_plane.kubeconfig_for("nobody-in-particular")
    found = json.loads(omnipipe("doctor", "--kubeconfig", str(kubeconfig), "-o", "json").stdout)
    assert {one["level"] for one in found} == {"ok", "note", "warning"}
    assert "you may not create omnipipelines" in " ".join(one["text"] for one in found)
    assert "forbidden" in omnipipe("list", "--kubeconfig", str(kubeconfig), code=1).stderr
