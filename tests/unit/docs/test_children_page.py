"""docs/children.md lists the kinds, volumes, times and ports that the operator's builders use."""

from __future__ import annotations

import pytest

from omni_operator.desired import deployment, model_files, pod_settings
from omni_operator.kinds import CHILD_KINDS
from omni_proto.pod_contract import GRPC_PORT, HEALTH_PORT, METRICS_PORT
from support.operator.operator_pipelines import build_all, make_single, pod_spec

HUB = {"model": {"uri": "hf://org/model", "tokenSecretRef": {"name": "hub"}}}


@pytest.fixture(scope="module")
def page(request: pytest.FixtureRequest) -> str:
    return (request.config.rootpath / "docs" / "children.md").read_text()


def rows(page: str, heading: str) -> list[list[str]]:
    """Returns the cells of the first table below the heading, row by row."""
    below = page.split(heading, 1)[1]
    table = below[below.index("|") :].split("\n\n", 1)[0].splitlines()[2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in table]


def test_every_kind_is_listed(page: str) -> None:
    assert {row[0] for row in rows(page, "# What the operator makes")} == {kind.kind for kind in CHILD_KINDS}


def test_every_volume_is_listed_with_its_place_and_size(page: str) -> None:
    spec = pod_spec(build_all(make_single(spec={**HUB, "entry": {"tls": {"secretName": "cert"}}})))
    mounts = {
        m["name"]: m["mountPath"] for c in (*spec["initContainers"], *spec["containers"]) for m in c["volumeMounts"]
    }
    listed = {row[0].strip("`"): row for row in rows(page, "## The pod")}
    assert {name: row[1].strip("`") for name, row in listed.items()} == mounts
    for volume in spec["volumes"]:
        size = volume.get("emptyDir", {}).get("sizeLimit", "")
        assert listed[volume["name"]][2].split(" ")[0].rstrip(",") == size


def test_times_are_those_of_the_probes(page: str) -> None:
    listed = {row[0]: row[1] for row in rows(page, "## Times")}
    made = deployment.build_probes(0)
    ready, alive = made["readinessProbe"], made["livenessProbe"]
    assert listed == {
        "startup": f"{deployment.STARTUP_S} s, and {deployment.STARTUP_PER_GPU_S} s for each GPU, "
        f"at most {deployment.MAX_STARTUP_S} s",
        "readiness": f"every {ready['periodSeconds']} s, fails after {ready['failureThreshold']}",
        "liveness": f"every {alive['periodSeconds']} s, fails after {alive['failureThreshold']}; "
        f"killed after {alive['terminationGracePeriodSeconds']} s",
        "preStop": f"{deployment.PRE_STOP_SLEEP_S} s",
        "termination": f"`timeouts.request` + {deployment.GRACE_BEYOND_REQUEST_S} s",
        "progress of a rollout": f"{deployment.PULL_AND_SCHEDULE_S} s, the startup time, "
        f"and {deployment.DOWNLOAD_S} s for a download",
    }


def test_user_cache_and_ports(page: str) -> None:
    assert f"user and group {pod_settings.USER_ID}" in page
    assert f"{model_files.CACHE_GIB_PER_GPU}Gi a GPU" in page
    ports = {row[2].split(",")[0] for row in rows(page, "## The network")}
    assert ports == {str(GRPC_PORT), str(HEALTH_PORT), str(METRICS_PORT), "53", "5353", "443"}
