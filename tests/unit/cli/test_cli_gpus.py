"""Which GPUs the stages of a local run get, and the error for a pipeline that does not fit the machine's GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from omni_cli.local.gpus import GpuDemand, assign_gpus, check_mps, gpu_environments, list_gpus, stage_environments
from omni_proto.pipeline import load_pipeline

SAMPLES = Path(__file__).parents[3] / "manifests" / "samples"
ALONE = [GpuDemand(name, 1) for name in ("a", "b", "c")]
SHARED = [GpuDemand("a", 1, 0.6), GpuDemand("b", 1, 0.2), GpuDemand("c", 1, 0.2)]


@pytest.mark.parametrize(
    ("demands", "count", "expected"),
    [
        (ALONE, 3, {"a": (0,), "b": (1,), "c": (2,)}),
        (ALONE, 4, {"a": (0,), "b": (1,), "c": (2,)}),
        (SHARED, 1, {"a": (0,), "b": (0,), "c": (0,)}),
        (SHARED, 3, {"a": (0,), "b": (1,), "c": (2,)}),
        ([GpuDemand("a", 1), *SHARED[1:]], 2, {"a": (0,), "b": (1,), "c": (1,)}),
        ([SHARED[1], GpuDemand("tp", 2), SHARED[2]], 3, {"tp": (0, 1), "b": (2,), "c": (2,)}),
        ([GpuDemand("cpu", 0), GpuDemand("a", 1)], 1, {"a": (0,)}),
        ([GpuDemand("cpu", 0)], 1, {}),
    ],
    ids=["one each", "one to spare", "shared", "shares and enough", "two share", "several GPUs first", "CPU", "no GPU"],
)
def test_gpus_are_assigned(demands: list[GpuDemand], count: int, expected: dict[str, tuple[int, ...]]) -> None:
    assert assign_gpus(demands, count) == expected


@pytest.mark.parametrize(
    ("demands", "count", "words"),
    [
        (ALONE, 1, r"stage b needs 0.92 of a GPU, but none of 1 has that left \(GPU 0: a\); set .*gpuMemoryUtil"),
        ([*SHARED, GpuDemand("d", 1, 0.1)], 1, "stage d needs 0.1 of a GPU"),
        ([GpuDemand("tp", 4)], 2, "stage tp needs 4 GPUs, but only 2 of 2 are left"),
    ],
    ids=["no shares", "too much", "too few GPUs"],
)
def test_stages_that_do_not_fit_the_gpus_are_refused(demands: list[GpuDemand], count: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        assign_gpus(demands, count)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [({}, ["0", "1"]), ({"CUDA_VISIBLE_DEVICES": "3,GPU-8f2"}, ["3", "GPU-8f2"]), ({"CUDA_VISIBLE_DEVICES": ""}, [])],
    ids=["device files", "named", "none wanted"],
)
def test_gpus_of_the_machine(tmp_path: Path, environ: dict[str, str], expected: list[str]) -> None:
    for name in ("nvidia0", "nvidia7", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    assert list_gpus(environ, tmp_path) == expected


def test_the_samples_stages_get_their_gpus() -> None:
    pipeline = load_pipeline(SAMPLES / "qwen25-omni.yaml")
    found = gpu_environments(pipeline, ["4", "5", "6"])
    assert {stage: variables["CUDA_VISIBLE_DEVICES"] for stage, variables in found.items()} == {
        "thinker": "4",
        "talker": "5",
        "token2wav": "6",
    }
    assert gpu_environments(pipeline, []) == {}
    assert gpu_environments(load_pipeline(SAMPLES / "tiny-omni.yaml"), ["0"]) == {}


def test_a_stage_gets_the_variables_of_the_resource(tmp_path: Path) -> None:
    """Its own replace those of the defaults, as in a cluster. The GPUs are this machine's."""
    document = yaml.safe_load((SAMPLES / "qwen25-omni-one-gpu.yaml").read_text())
    secret = {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "tokens", "key": "token"}}}
    document["spec"]["defaults"] = {"env": [{"name": "SITE", "value": "here"}, secret]}
    document["spec"]["stages"][1]["env"] = [{"name": "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "value": "40"}]
    (tmp_path / "pipeline.yaml").write_text(yaml.safe_dump(document))
    pipeline = load_pipeline(tmp_path / "pipeline.yaml")
    found = stage_environments(pipeline, {"CUDA_VISIBLE_DEVICES": "3"})
    gpu = {"CUDA_VISIBLE_DEVICES": "3", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert found == {
        "thinker": {"SITE": "here", **gpu},
        "talker": {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "40", **gpu},
        "token2wav": {"SITE": "here", **gpu},
    }


def test_an_mps_daemon_that_is_asked_for_must_run(tmp_path: Path) -> None:
    environ = {"CUDA_VISIBLE_DEVICES": "0", "CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)}
    with pytest.raises(ValueError, match=r"no MPS daemon runs there: .*/control is missing"):
        stage_environments(load_pipeline(SAMPLES / "qwen25-omni-one-gpu.yaml"), environ)
    assert stage_environments(load_pipeline(SAMPLES / "tiny-omni.yaml"), environ)["talker"] == {}, "without GPUs"
    (tmp_path / "control").touch()
    check_mps(environ)
    check_mps({})
