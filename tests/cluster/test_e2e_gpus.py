"""A pipeline that needs more GPUs than the node advertises says so in its status, and runs once there are enough."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import yaml

from support.cluster.cluster import Cluster
from support.cluster.workload import SAMPLES
from support.controlplane.pipelines import wait_condition, wait_settled
from support.controlplane.server.api import Api

NAME = "wants-gpus"
GPU = "nvidia.com/gpu"


@pytest.fixture
def two_gpus(cluster: Cluster) -> Iterator[Cluster]:
    """Yields the node while it advertises two GPUs. Afterwards it advertises none."""
    cluster.set_gpus(2)
    yield cluster
    cluster.set_gpus(0)


@pytest.mark.timeout(900)
def test_a_pipeline_waits_for_gpus_says_so_and_runs_when_there_are_enough(two_gpus: Cluster, speech: Api) -> None:
    # The pipeline requests three GPUs and the node advertises two. None of them is real: paced engines need no GPU.
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
        speech.delete("OmniPipeline", NAME)
