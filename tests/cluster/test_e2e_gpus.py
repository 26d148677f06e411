"""GPUs that the node advertises: a pipeline that needs more reports it, and runs once there are more."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import yaml

from support.cluster.cluster import Cluster
from support.cluster.workload import SAMPLES, delete_pipeline
from support.controlplane.api import Api
from support.controlplane.pipelines import wait_condition, wait_settled

NAME = "wants-gpus"
GPU = "nvidia.com/gpu"


@pytest.fixture
def two_gpus(cluster: Cluster) -> Iterator[Cluster]:
    """A node that advertises two GPUs; none afterwards."""
    cluster.set_gpus(2)
    yield cluster
    cluster.set_gpus(0)


@pytest.mark.timeout(900)
def test_a_pipeline_waits_for_gpus_says_so_and_runs_when_there_are_enough(two_gpus: Cluster, speech: Api) -> None:
    # Three GPUs, and two are there. No GPU is behind what is advertised: paced engines need none, and start quickly.
    pipeline = yaml.safe_load((SAMPLES / "sim-omni.yaml").read_text())
    pipeline["metadata"]["name"] = NAME
    for stage in pipeline["spec"]["stages"]:
        stage["resources"]["limits"][GPU] = 1
    speech.apply(pipeline)
    try:
        told = wait_condition(speech, "Ready", NAME, timeout_s=60, status="False", reason="Unschedulable")
        assert GPU in told["message"]
        two_gpus.set_gpus(3)
        wait_settled(speech, NAME, timeout_s=300)
    finally:
        delete_pipeline(speech, NAME)
