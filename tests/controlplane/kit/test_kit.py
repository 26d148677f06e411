"""The tests' control plane behaves like a cluster, where no test of the operator would notice that it does not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.controlplane.control_plane import ControlPlane
from support.controlplane.server.api import Api, Manifest, eventually

pytestmark = pytest.mark.controlplane


def build_pod(name: str, annotations: dict[str, str]) -> Manifest:
    container = {"name": "main", "image": "example.com/app:1"}
    metadata = {"name": name, "annotations": annotations, "labels": {"app": name}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}


def build_deployment(name: str) -> Manifest:
    container = {"name": "main", "image": "example.com/app:1"}
    template = {"metadata": {"labels": {"app": name}}, "spec": {"containers": [container]}}
    spec = {"replicas": 1, "selector": {"matchLabels": {"app": name}}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}


def condition(manifest: Manifest, kind: str) -> str | None:
    conditions = manifest.get("status", {}).get("conditions", [])
    return next((c["status"] for c in conditions if c["type"] == kind), None)


@pytest.mark.parametrize(
    ("behaviour", "phase", "waiting"),
    [
        pytest.param("never-ready", "Running", None, id="a probe fails"),
        pytest.param("image-pull", "Pending", "ImagePullBackOff", id="no such image"),
        pytest.param("crash", "Running", "CrashLoopBackOff", id="crash loop"),
    ],
)
def test_a_pod_that_does_not_become_ready(api: Api, behaviour: str, phase: str, waiting: str | None) -> None:
    message = '{"reason": "X"}'
    api.create(build_pod("bad", {"kwok.test/behaviour": behaviour, "kwok.test/termination-message": message}))
    status = eventually(lambda: s if "containerStatuses" in (s := api.get("Pod", "bad")["status"]) else None)
    assert status["phase"] == phase
    assert condition({"status": status}, "Ready") == "False"
    assert status["containerStatuses"][0]["state"].get("waiting", {}).get("reason") == waiting
    if waiting == "CrashLoopBackOff":
        assert status["containerStatuses"][0]["lastState"]["terminated"]["message"] == message


def test_the_api_server_comes_back_at_its_address(control_plane: ControlPlane, api: Api) -> None:
    api.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kept"}})
    control_plane.restart(kill=True)
    assert api.get("ConfigMap", "kept")
    # The controllers, the scheduler and kwok work again as well.
    api.apply(build_deployment("later"))
    eventually(lambda: api.get("Deployment", "later")["status"].get("readyReplicas") == 1)


def test_kwok_is_started_again_when_it_crashes(control_plane: ControlPlane, api: Api) -> None:
    shell = next(child.pid for child in control_plane._controllers if child.name == "kwok")
    (kwok,) = Path(f"/proc/{shell}/task/{shell}/children").read_text().split()
    os.kill(int(kwok), signal.SIGKILL)
    api.apply(build_deployment("later"))
    eventually(lambda: api.get("Deployment", "later")["status"].get("readyReplicas") == 1)


def test_kubectl_is_the_pinned_one(control_plane: ControlPlane, api: Api) -> None:
    version = control_plane.kubectl("version").stdout
    assert version.count("v1.34.") == 2, version
    manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"a": "b"}}
    control_plane.kubectl("apply", "-f", "-", stdin=manifest, namespace=api.namespace)
    assert api.get("ConfigMap", "c")["data"] == {"a": "b"}


def test_nothing_survives_a_killed_test_run(tmp_path: Path) -> None:
    script = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from support.controlplane.server.api_server import ApiServer\n"
        "server = ApiServer(Path(sys.argv[1])).__enter__()\n"
        "print(*(child.pid for child in server._children), flush=True)\n"
        "time.sleep(600)\n"
    )
    tests = Path(__file__).resolve().parents[2]
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], cwd=tests, stdout=subprocess.PIPE) as run:
        assert run.stdout is not None
        pids = [int(pid) for pid in run.stdout.readline().split()]
        assert len(pids) == 2
        assert all(Path(f"/proc/{pid}").exists() for pid in pids)
        run.kill()
    eventually(lambda: not any(alive(pid) for pid in pids))


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
