"""`make bench-pods`: compares a stage's start in a pod, from created to Ready, with its start as a plain process.

It needs root, and runs on the real node of the end-to-end tests. The two kinds of start take turns, one stage at a
time.

    python -m benchmarks.pod_start [--rounds 5] [--keep-images]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.__main__ import record, write_page
from benchmarks.harness.interleave import median_ratio
from benchmarks.harness.report import Report, Row
from benchmarks.harness.stored import RESULTS
from benchmarks.harness.verdict import Ratio
from omni_cli.local.pipeline import compile_local
from omni_proto.pipeline import load_pipeline
from omni_stage.models.qwen2_5_omni.tiny import write_tiny_checkpoint
from support.cluster.cluster import Cluster
from support.cluster.workload import delete_pipeline, serve_sample
from support.controlplane.pipelines import condition_of, wait_settled
from support.controlplane.server.api import Api, Manifest

STAGES = ("thinker", "talker", "token2wav")
SAMPLE = Path(__file__).parents[1] / "manifests" / "samples" / "tiny-omni-full.yaml"
NAMESPACE, NAME = "pod-start", "tiny-omni"
TABLE = "a stage in a pod and outside"
AT_MOST = 1.3
START_LIMIT_S = 300


@dataclass(frozen=True, slots=True)
class PodStart:
    """Times of a pod's start, seen by a watch, in seconds since the pod was created."""

    running: float
    ready: float


def main() -> int:
    """Run the bench and store its result. Returns 1 if a bound is exceeded, else 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pod_start", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--keep-images", action="store_true", help="use the node's images without building them")
    options = parser.parse_args()
    _, problems = record("pods", lambda: make_report(options.rounds, keep_images=options.keep_images), RESULTS)
    if not problems:
        write_page("pods")
    for problem in problems:
        print(f"FAILED {problem}", file=sys.stderr)
    return int(bool(problems))


def make_report(rounds: int, *, keep_images: bool) -> Report:
    """Start a node, and measure every stage on it. Returns the report."""
    with tempfile.TemporaryDirectory(prefix="omnipipeline-bench-") as temporary, Cluster() as cluster:
        if not keep_images:
            cluster.images.build()
        rows = measure(cluster, Path(temporary), rounds)
    ratios = [Ratio(f"{row['stage']}, x outside a pod", row["ratio"], at_most=AT_MOST) for row in rows]
    return Report(
        {TABLE: rows}, ratios, ["One stage at a time. The pipeline's other stages run idle in their pods meanwhile."]
    )


def measure(cluster: Cluster, folder: Path, rounds: int) -> list[Row]:
    """Returns a row for each stage. The first round fills caches and is not counted."""
    write_tiny_checkpoint(folder / "model", seed=0)
    api = serve_sample(cluster, NAMESPACE, folder / "model")
    outside: dict[str, list[float]] = {stage: [] for stage in STAGES}
    inside: dict[str, list[PodStart]] = {stage: [] for stage in STAGES}
    for config in compile_local(load_pipeline(SAMPLE), str(folder / "model"), dict.fromkeys(STAGES, 0)):
        (folder / f"{config.stage}.yaml").write_text(config.to_yaml())
    for number in range(-1, rounds):
        for stage in STAGES:
            seconds = start_once(folder / f"{stage}.yaml", folder)
            start = replace_pod(api, stage)
            wait_settled(api, NAME, timeout_s=START_LIMIT_S)
            if number >= 0:
                outside[stage].append(seconds)
                inside[stage].append(start)
    delete_pipeline(api, NAME)
    return [to_row(stage, outside[stage], inside[stage]) for stage in STAGES]


def start_once(config: Path, folder: Path) -> float:
    """Start a stage server, wait until it is ready, and stop it. Returns the seconds until it was ready.

    Raises RuntimeError with the end of the log if the server does not become ready.
    """
    address = folder / "address.json"
    address.unlink(missing_ok=True)
    command = [sys.executable, "-m", "omni_stage", "serve", "--config", str(config), "--address-file", str(address)]
    with (folder / "stage.log").open("wb") as log:
        launched = time.monotonic()
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            while not address.exists():
                if process.poll() is not None or time.monotonic() - launched > START_LIMIT_S:
                    raise RuntimeError((folder / "stage.log").read_text(errors="replace")[-4000:])
                time.sleep(0.005)
            return time.monotonic() - launched
        finally:
            process.terminate()
            process.wait(60)


def to_row(stage: str, outside: list[float], inside: list[PodStart]) -> Row:
    """Returns a stage's median times, and the median of the rounds' ratios."""
    return {
        "stage": stage,
        "outside_s": round(statistics.median(outside), 1),
        "created_to_running_s": round(statistics.median(start.running for start in inside), 1),
        "created_to_ready_s": round(statistics.median(start.ready for start in inside), 1),
        "ratio": round(median_ratio([start.ready for start in inside], outside), 2),
    }


def replace_pod(api: Api, stage: str) -> PodStart:
    """Delete the stage's pod. Returns the times of the start of the pod that replaces it.

    Raises RuntimeError if the new pod is not ready within START_LIMIT_S.
    """
    selector = f"omnipipeline.io/pipeline={NAME},omnipipeline.io/stage={stage}"
    (old,) = api.list("Pod", selector)
    api.delete("Pod", old["metadata"]["name"], grace_s=0)
    created: float | None = None
    running: float | None = None
    for event in api.watch("Pod", timeout_s=START_LIMIT_S, resource_version=old["metadata"]["resourceVersion"]):
        pod, now = event["object"], time.monotonic()
        labels = pod["metadata"].get("labels", {})
        if labels.get("omnipipeline.io/stage") != stage or pod["metadata"]["uid"] == old["metadata"]["uid"]:
            continue
        created = now if created is None else created
        if running is None and is_running(pod):
            running = now - created
        if running is not None and condition_of(pod, "Ready").get("status") == "True":
            return PodStart(running, now - created)
    raise RuntimeError(f"no pod of {stage} was ready within {START_LIMIT_S} s")


def is_running(pod: Manifest) -> bool:
    """Returns whether a container of the pod is running."""
    return any("running" in status["state"] for status in pod["status"].get("containerStatuses", []))


if __name__ == "__main__":
    sys.exit(main())
