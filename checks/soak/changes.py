"""`make soak-cluster`: changes a pipeline on a real node while a pod sends load. Needs root.

    PYTHONPATH=tests:. python -m checks.soak.changes --times 10 --json benchmarks/results/soak-changes.json
    PYTHONPATH=tests:. python -m checks.soak.changes --times 17 --only "rolling update"     # 51 rolling restarts

The changes are rolling updates of each stage, a new revision, and scaling from one replica to three and back. Each kind
is repeated --times times. The run fails if a call fails or a change does not reach its goal.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.harness.report import describe_machine, load
from tools.json_text import format_json

from omni_stage.models.qwen2_5_omni.tiny import write_tiny_checkpoint
from support.cluster.changes import STAGES, Changes, Outcome
from support.cluster.client_pod import start_client
from support.cluster.cluster import Cluster
from support.cluster.workload import serve_sample

NAMESPACE = "speech"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--only", default="", help="only kinds of changes whose name contains this; default: all")
    parser.add_argument("--keep-images", action="store_true", help="use the node's images without building them")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    machine, began = describe_machine(), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="omni-soak-") as folder, Cluster() as cluster:
        if not options.keep_images:
            cluster.images.build()
        checkpoint = write_tiny_checkpoint(Path(folder) / "model", seed=0, dtype="float32")
        changes, problems = run_all(prepare(cluster, checkpoint), options.times, options.only)
    report = {
        "minutes": round((time.monotonic() - began) / 60, 1),
        "changes": changes,
        "problems": problems,
        "machine": {**machine, "load_after": load()},
    }
    text = format_json(report)
    sys.stdout.write(text)
    if options.json:
        options.json.write_text(text, encoding="utf-8")
    return 1 if problems else 0


def prepare(cluster: Cluster, checkpoint: Path) -> Changes:
    """Installs the operator, the sample and a client's pod on the node. Returns an object that makes changes."""
    api = serve_sample(cluster, NAMESPACE, checkpoint)
    return Changes(cluster, api, start_client(cluster, NAMESPACE))


def run_all(changes: Changes, times: int, only: str = "") -> tuple[list[dict[str, object]], list[str]]:
    """Makes each kind of change whose name contains `only`, in turn, `times` times.

    Returns a row for each kind, and the problems.
    """
    kinds: Mapping[str, Callable[[], Outcome]] = {
        **{f"rolling update of {stage}": lambda stage=stage: changes.roll(stage) for stage in STAGES},
        "new revision": changes.switch_revision,
        "1 to 3 replicas of token2wav and back": lambda: changes.scale("token2wav", 3),
    }
    kinds = {kind: change for kind, change in kinds.items() if only in kind}
    outcomes: dict[str, list[Outcome]] = {kind: [] for kind in kinds}
    problems: list[str] = [] if kinds else [f"no kind of change has {only!r} in its name"]
    for number in range(1, times + 1):
        for kind, change in kinds.items():
            try:
                outcome = change()
            except AssertionError as error:
                problems.append(f"{kind} {number}: {error}")
                continue
            outcomes[kind].append(outcome)
            problems += [f"{kind} {number}: {failure}" for failure in outcome.failures]
            sys.stderr.write(f"{number}/{times} {kind}: {outcome}\n")
    return [summarise(kind, done) for kind, done in outcomes.items() if done], problems


def summarise(kind: str, outcomes: list[Outcome]) -> dict[str, object]:
    """Returns the report's row for one kind of change: times in seconds, and calls."""
    seconds = [outcome.seconds for outcome in outcomes]
    row: dict[str, object] = {
        "change": kind,
        "times": len(outcomes),
        "median_s": round(statistics.median(seconds), 1),
        "longest_s": round(max(seconds), 1),
        "calls_answered": sum(outcome.answered for outcome in outcomes),
        "calls_failed": sum(len(outcome.failures) for outcome in outcomes),
        "longest_call_s": round(max(outcome.longest_s for outcome in outcomes), 1),
    }
    traffic = [outcome.traffic_s for outcome in outcomes if outcome.traffic_s is not None]
    return row | ({"longest_until_traffic_s": round(max(traffic), 1)} if traffic else {})


if __name__ == "__main__":
    sys.exit(main())
