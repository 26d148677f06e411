"""`make bench-operator`: the operator under load on a real control plane, compared with budgets and a bare loop.

The bench creates 500 pipelines of three stages, one per second, and kwok makes their pods Ready. It measures how long
it takes until all child objects of a pipeline exist and until the pipeline is Ready. It also measures the number of
writes, and the operator's CPU time and memory. Then it measures a relist and a restart. The bare loop applies the
objects of such pipelines with the same client, and does nothing else.

    python -m benchmarks.operator_load [--pipelines 500] [--rate 1]
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import urllib3

from benchmarks.__main__ import record, write_page
from benchmarks.harness.report import Report, Row
from benchmarks.harness.stored import RESULTS
from benchmarks.harness.verdict import Ratio
from omni_kube.api.client import ApiClient
from omni_kube.api.timing import RateLimiter
from omni_kube.api.transport import Transport, load_connection
from omni_kube.objects import Manifest
from omni_operator.desired.build_settings import BuildSettings, Owner
from omni_operator.desired.children import build_revision_set, build_shared
from omni_operator.desired.revision import compute_revision
from omni_operator.kinds import FIELD_MANAGER, KIND_BY_NAME
from omni_operator.process.metrics import Metrics
from omni_operator.rollout.replicas import first_replicas
from omni_proto.pipeline.read.load import type_document
from support.controlplane.control_plane import ControlPlane
from support.controlplane.operators import OperatorProcess, wait_idle
from support.controlplane.pipelines import CHILD_KINDS, PIPELINE_LABEL, build_pipeline, condition_of
from support.controlplane.server.api import Api, ApiError, eventually

ROOT = Path(__file__).resolve().parents[1]
NAMESPACE = "load"
CHILDREN = 16
"""Children of a pipeline of three stages with one replica each."""
MIB = 2**20
BARE_PIPELINES = 60
MANY = "--max-pipelines=100000"

BUDGETS: Mapping[str, float] = {
    "children_p95_s": 1.5,
    "ready_p95_s": 3.0,
    "noop_applies": 0,
    "extra_applies": 0,
    "status_writes_per_pipeline": 3,
    "cpu_ms_per_pipeline": 60,
    "cpu_ratio_to_bare_loop": 5,
    "rss_at_rest_mib": 250,
    "rss_after_relist_mib": 300,
    "restart_all_visited_s": 15,
    "restart_writes": 0,
}


@dataclass
class Observer:
    """Watches the API server, and records when each pipeline had all its children and when it was Ready.

    Times are in seconds of the monotonic clock, by the pipeline's name.
    """

    api: Api
    created: dict[str, float] = field(default_factory=dict)
    complete: dict[str, float] = field(default_factory=dict)
    ready: dict[str, float] = field(default_factory=dict)
    _children: dict[str, set[str]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _done: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        """Start the watches, each in its own thread."""
        for kind in CHILD_KINDS:
            threading.Thread(target=self._follow, args=(kind, self._see_child), daemon=True).start()
        threading.Thread(target=self._follow, args=("OmniPipeline", self._see_pipeline), daemon=True).start()

    def stop(self) -> None:
        """Stop the watches, so that the next measurement has the API server to itself."""
        self._done.set()

    def _follow(self, kind: str, see: Callable[[str, Manifest], None]) -> None:
        version = "0"
        while not self._done.wait(0.5):
            try:
                for event in self.api.watch(kind, timeout_s=30, resource_version=version):
                    if self._done.is_set():
                        return
                    if event["type"] == "ERROR":  # The version is too old: list and watch again.
                        version = "0"
                        break
                    version = event["object"]["metadata"]["resourceVersion"]
                    see(event["type"], event["object"])
            except (OSError, ApiError, ValueError, urllib3.exceptions.HTTPError):
                continue

    def _see_child(self, event: str, child: Manifest) -> None:
        name = (child["metadata"].get("labels") or {}).get(PIPELINE_LABEL)
        if event != "ADDED" or name is None:
            return
        with self._lock:
            children = self._children.setdefault(name, set())
            children.add(child["metadata"]["uid"])
            if len(children) == CHILDREN:
                self.complete.setdefault(name, time.monotonic())

    def _see_pipeline(self, event: str, pipeline: Manifest) -> None:
        name = pipeline["metadata"]["name"]
        if condition_of(pipeline, "Ready").get("status") == "True" and name not in self.ready:
            self.ready[name] = time.monotonic()


def main() -> int:
    """Run the bench and store its result. Returns 1 if a budget or a bound is exceeded, else 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.operator_load", description=__doc__.splitlines()[0])
    parser.add_argument("--pipelines", type=int, default=500)
    parser.add_argument("--rate", type=float, default=1.0, help="pipelines created a second")
    parser.add_argument("--bare", nargs=2, metavar=("KUBECONFIG", "NAMESPACE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.bare:
        print(asyncio.run(apply_bare(Path(options.bare[0]), options.bare[1])))
        return 0
    report, problems = record("operator", lambda: make_report(options.pipelines, options.rate), RESULTS)
    if not problems:
        write_page("operator")
    over = [f"{row['figure']} over its budget" for row in report.tables["figures"] if row["met"] is False]
    for problem in [*problems, *over]:
        print(f"FAILED {problem}", file=sys.stderr)
    return int(bool(problems or over))


def make_report(pipelines: int, rate: float) -> Report:
    """Run the bench. Returns its report."""
    # Operator, client and control plane share the cores, and the control plane uses most of the processor time. So the
    # figures mean little if the machine does other work.
    with tempfile.TemporaryDirectory(prefix="omnipipeline-bench-") as temporary:
        figures = measure(Path(temporary), pipelines, rate)
    rows = [to_row(name, value) for name, value in figures.items()]
    name = "cpu_ratio_to_bare_loop"
    ratio = Ratio(name, figures[name], at_most=BUDGETS[name], tolerance=0.25)
    return Report({"figures": rows}, [ratio], [f"{pipelines} pipelines of three stages, {rate:g} a second"])


def to_row(name: str, value: float) -> Row:
    """Returns the row of a figure, with its budget if it has one."""
    budget = BUDGETS.get(name)
    return {"figure": name, "value": value, "at most": budget, "met": None if budget is None else value <= budget}


def measure(directory: Path, pipelines: int, rate: float) -> dict[str, float]:
    """Run all phases on one control plane. Returns their figures."""
    crds = sorted((ROOT / "manifests" / "crd").glob("*.yaml"))
    with ControlPlane(directory / "control-plane", crds=crds) as plane:
        api = plane.create_namespace(NAMESPACE)
        figures: dict[str, float] = {}
        bare = [run_bare(plane, "bare-before")]
        operator = OperatorProcess(plane.kubeconfig, directory, MANY)
        with operator:
            figures |= measure_load(api, operator, pipelines, rate)
            figures |= measure_relist(plane, operator)
        with OperatorProcess(plane.kubeconfig, directory, MANY) as second:
            figures |= measure_restart(second, pipelines)
        bare.append(run_bare(plane, "bare-after"))
        figures["bare_loop_cpu_ms_per_pipeline"] = round(statistics.mean(bare), 1)
        figures["cpu_ratio_to_bare_loop"] = round(figures["cpu_ms_per_pipeline"] / statistics.mean(bare), 2)
        return figures


def measure_load(api: Api, operator: OperatorProcess, pipelines: int, rate: float) -> dict[str, float]:
    """Create `rate` pipelines per second. Returns latencies, writes, CPU time and memory."""
    observer = Observer(api)
    observer.start()
    wait_idle(operator)
    before, cpu_s = operator.metrics(), operator.cpu_s()
    started = time.monotonic()
    for index in range(pipelines):
        time.sleep(max(0.0, started + index / rate - time.monotonic()))
        name = f"p{index}"
        observer.created[name] = time.monotonic()
        api.create(build_pipeline(name))
        if index % 50 == 49:
            say(f"{index + 1} pipelines created, {len(observer.ready)} ready, {operator.rss_bytes() / MIB:.0f} MiB")
    eventually(lambda: len(observer.ready) == pipelines, timeout_s=600, every_s=0.5, why="all pipelines ready")
    observer.stop()
    wait_idle(operator, quiet_s=5)
    cpu_ms = (operator.cpu_s() - cpu_s) * 1000
    after = operator.metrics()

    def total(name: str) -> float:
        return after.get(name, 0.0) - before.get(name, 0.0)

    children = sum(len(api.list(kind, labels=PIPELINE_LABEL)) for kind in CHILD_KINDS)
    applies = total('omni_operator_api_calls_total{code="201",verb="patch"}')
    patches = sum(after[k] - before.get(k, 0.0) for k in after if is_call(k, "patch"))
    status = total("omni_operator_status_writes_total")
    return {
        "children_p50_s": percentile(observer.created, observer.complete, 50),
        "children_p95_s": percentile(observer.created, observer.complete, 95),
        "ready_p50_s": percentile(observer.created, observer.ready, 50),
        "ready_p95_s": percentile(observer.created, observer.ready, 95),
        "children": children,
        "applies": applies,
        "extra_applies": patches - status - children,
        "noop_applies": total("omni_operator_noop_applies_total"),
        "status_writes_per_pipeline": round(status / pipelines, 2),
        "cpu_ms_per_pipeline": round(cpu_ms / pipelines, 1),
        "rss_at_rest_mib": round(operator.rss_bytes() / MIB, 1),
    }


def measure_relist(plane: ControlPlane, operator: OperatorProcess) -> dict[str, float]:
    """Restart the API server, so that all watches end and the operator lists everything again.

    Returns the operator's memory 30 s later, and its peak until then.
    """
    plane.restart(kill=True)
    peak, until = 0, time.monotonic() + 30
    while time.monotonic() < until:
        peak = max(peak, operator.rss_bytes())
        time.sleep(0.1)
    return {"rss_after_relist_mib": round(operator.rss_bytes() / MIB, 1), "rss_relist_peak_mib": round(peak / MIB, 1)}


def measure_restart(operator: OperatorProcess, pipelines: int) -> dict[str, float]:
    """Returns the seconds from the process's start until all pipelines are reconciled, and the writes until idle."""
    age_s = process_age_s(operator.child.pid)
    started = time.monotonic()
    name = 'omni_operator_reconcile_total{result="unchanged"}'
    eventually(lambda: operator.metrics().get(name, 0) >= pipelines, timeout_s=120, why="all pipelines visited")
    visited = time.monotonic() - started + age_s
    wait_idle(operator, quiet_s=5)
    metrics = operator.metrics()
    writes = sum(value for key, value in metrics.items() if is_call(key, "patch") or is_call(key, "delete"))
    return {"restart_all_visited_s": round(visited, 2), "restart_writes": writes}


def is_call(sample: str, verb: str) -> bool:
    """Returns whether a sample's name counts the operator's API calls with this RBAC verb."""
    return sample.startswith("omni_operator_api_calls_total") and f'verb="{verb}"' in sample


def process_age_s(pid: int) -> float:
    """Returns the seconds since a process started. Assumes 100 clock ticks per second."""
    ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    return float(Path("/proc/uptime").read_text().split()[0]) - ticks / 100


def percentile(created: Mapping[str, float], done: Mapping[str, float], percent: int) -> float:
    """Returns a percentile of the seconds from created to done. A pipeline that is not done counts as infinite."""
    times = sorted(done[name] - created[name] for name in created if name in done)
    missing = len(created) - len(times)
    index = min(len(created) - 1, len(created) * percent // 100)
    return float("inf") if index >= len(created) - missing else round(times[index], 3)


def run_bare(plane: ControlPlane, namespace: str) -> float:
    """Run the bare loop in its own process. Returns its CPU milliseconds per pipeline."""
    plane.create_namespace(namespace)
    command = [sys.executable, "-m", "benchmarks.operator_load", "--bare", str(plane.kubeconfig), namespace]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    plane.admin.delete("Namespace", namespace)
    return float(done.stdout)


async def apply_bare(kubeconfig: Path, namespace: str) -> float:
    """Apply every object of BARE_PIPELINES pipelines and do nothing else. Returns CPU milliseconds per pipeline."""
    sets = [build_children(f"p{index}", namespace) for index in range(BARE_PIPELINES)]
    transport = Transport(await load_connection(kubeconfig, FIELD_MANAGER), Metrics())
    client = ApiClient(transport, RateLimiter(10_000, 10_000))
    started = time.process_time()
    for children in sets:
        for child in children:
            await client.apply_new(KIND_BY_NAME[child["kind"]], child)
    cpu_s = time.process_time() - started
    await transport.close()
    return cpu_s / len(sets) * 1000


def build_children(name: str, namespace: str) -> list[dict[str, Any]]:
    """Returns the objects that the operator would create for the pipeline of `build_pipeline`."""
    pipeline = type_document(build_pipeline(name))
    settings, owner = BuildSettings(), Owner(name, namespace)
    revision = compute_revision(pipeline, settings.default_image)
    shared = build_shared(owner, serving=revision)
    return [*shared, *build_revision_set(pipeline, revision, first_replicas(pipeline), owner, settings)]


def say(message: str) -> None:
    """Print a line of progress to stderr."""
    print(message, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
