"""The tests' control plane behaves like a cluster. The other tests of this folder rely on that."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.controlplane import pods
from support.controlplane.control_plane import GPU, ControlPlane
from support.controlplane.server.api import Api, ApiError, Manifest, eventually

pytestmark = pytest.mark.controlplane


def build_pod(name: str, *, annotations: dict[str, str] | None = None, gpus: int = 0) -> Manifest:
    resources = {"limits": {GPU: str(gpus)}} if gpus else {}
    container = {"name": "main", "image": "example.com/app:1", "resources": resources}
    metadata = {"name": name, "annotations": annotations or {}, "labels": {"app": name}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}


def build_deployment(name: str, image: str = "example.com/app:1", replicas: int = 2) -> Manifest:
    template = {
        "metadata": {"labels": {"app": name}},
        "spec": {"containers": [{"name": "main", "image": image}]},
    }
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}


def condition(manifest: Manifest, kind: str) -> str | None:
    conditions = manifest.get("status", {}).get("conditions", [])
    return next((c["status"] for c in conditions if c["type"] == kind), None)


def test_a_pod_becomes_ready(api: Api) -> None:
    api.create(build_pod("one"))
    pod = eventually(lambda: p if condition(p := api.get("Pod", "one"), "Ready") == "True" else None)
    assert pod["status"]["phase"] == "Running"
    assert pod["status"]["podIP"]


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
    api.create(
        build_pod("bad", annotations={"kwok.test/behaviour": behaviour, "kwok.test/termination-message": message})
    )
    status = eventually(lambda: s if "containerStatuses" in (s := api.get("Pod", "bad")["status"]) else None)
    assert status["phase"] == phase
    assert condition({"status": status}, "Ready") == "False"
    assert status["containerStatuses"][0]["state"].get("waiting", {}).get("reason") == waiting
    if waiting == "CrashLoopBackOff":
        assert status["containerStatuses"][0]["lastState"]["terminated"]["message"] == message


def test_a_running_pod_fails_and_recovers(api: Api) -> None:
    api.apply(
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "s"},
            "spec": {"clusterIP": "None", "selector": {"app": "one"}, "ports": [{"port": 80}]},
        }
    )
    api.create(build_pod("one"))
    pod = eventually(lambda: p if condition(p := api.get("Pod", "one"), "Ready") == "True" else None)
    eventually(lambda: ready_endpoints(api) == 1)
    pods.crash(api, pod, "out of memory")
    eventually(lambda: ready_endpoints(api) == 0)
    pods.set_ready(api, api.get("Pod", "one"))
    eventually(lambda: ready_endpoints(api) == 1)


def ready_endpoints(api: Api) -> int:
    slices = api.list("EndpointSlice")
    return sum(bool(e["conditions"].get("ready")) for s in slices for e in s.get("endpoints") or [])


def test_a_deployment_rolls_out(api: Api) -> None:
    api.apply(build_deployment("web"))
    eventually(lambda: api.get("Deployment", "web")["status"].get("readyReplicas") == 2)
    api.apply(build_deployment("web", image="example.com/app:2"))
    eventually(lambda: {p["spec"]["containers"][0]["image"] for p in api.list("Pod")} == {"example.com/app:2"})


def test_gpus_are_limited(control_plane: ControlPlane, api: Api) -> None:
    control_plane.add_node("few-gpus", gpus=2, labels={"few": "yes"})
    try:
        for index in range(3):
            pod = build_pod(f"gpu-{index}", gpus=1)
            pod["spec"]["nodeSelector"] = {"few": "yes"}
            api.create(pod)
        eventually(lambda: sum(condition(p, "PodScheduled") == "False" for p in api.list("Pod")) == 1)
        control_plane.set_gpus("few-gpus", 3)
        eventually(lambda: all(condition(p, "Ready") == "True" for p in api.list("Pod")))
    finally:
        control_plane.admin.delete("Node", "few-gpus")


def test_owned_objects_go_with_their_owner(api: Api) -> None:
    owner = api.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "owner"}})
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"]}
    api.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "owned", "ownerReferences": [reference]}})
    api.delete("ConfigMap", "owner")
    eventually(lambda: api.find("ConfigMap", "owned") is None)


def test_users_may_do_what_rbac_grants(control_plane: ControlPlane, api: Api) -> None:
    kubeconfigs = {
        "alice": control_plane.kubeconfig_for("alice"),
        "robot": control_plane.kubeconfig_for_service_account(api.namespace, "robot"),
    }
    clients = {name: Api(path, api.namespace) for name, path in kubeconfigs.items()}
    for client in clients.values():
        with pytest.raises(ApiError, match="403 Forbidden"):
            client.list("Pod")
    metadata = {"name": "reader"}
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
    api.create({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": metadata, "rules": rules})
    subjects = [
        {"kind": "User", "name": "alice", "apiGroup": "rbac.authorization.k8s.io"},
        {"kind": "ServiceAccount", "name": "robot", "namespace": api.namespace},
    ]
    api.create(
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "subjects": subjects,
            "roleRef": {"kind": "Role", "name": "reader", "apiGroup": "rbac.authorization.k8s.io"},
        }
    )
    for client in clients.values():
        eventually(lambda client=client: client.list("Pod") == [])


def test_the_api_server_comes_back_at_its_address(control_plane: ControlPlane, api: Api) -> None:
    api.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kept"}})
    control_plane.restart(kill=True)
    assert api.get("ConfigMap", "kept")
    # The controllers, the scheduler and kwok work again as well.
    api.apply(build_deployment("later", replicas=1))
    eventually(lambda: api.get("Deployment", "later")["status"].get("readyReplicas") == 1)


def test_kwok_is_started_again_when_it_crashes(control_plane: ControlPlane, api: Api) -> None:
    shell = next(child.pid for child in control_plane._controllers if child.name == "kwok")
    (kwok,) = Path(f"/proc/{shell}/task/{shell}/children").read_text().split()
    os.kill(int(kwok), signal.SIGKILL)
    api.apply(build_deployment("later", replicas=1))
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
    except FileNotFoundError:
        return False
