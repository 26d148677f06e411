"""`python -m benchmarks.operator_tenants`: measures one tenant's edits while another tenant has many pipelines.

The namespace `crowd` gets thousands of pipelines of three stages, and hundreds of ConfigMaps of a mebibyte that carry a
pipeline's label but have no owner. While these pipelines are created, and afterwards, a pipeline in another namespace
is edited. The bench measures how long it takes until that pipeline's Deployment shows the edit, the operator's memory,
and whether the operator stays healthy.

With the operator's default settings, only the 100 oldest pipelines in `crowd` get children, and the others get only a
condition. With --max-pipelines the operator can serve all of them. This also loads the API server, the controllers and
the kubelets.

    python -m benchmarks.operator_tenants [--pipelines 2000] [--max-pipelines 2000] [--rate 4] [--config-maps 300]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from benchmarks.__main__ import record
from benchmarks.harness.interleave import quantile
from benchmarks.harness.report import Report, Row
from benchmarks.harness.stored import RESULTS
from benchmarks.operator_load import MIB, ROOT, process_age_s, say
from support.controlplane.control_plane import ControlPlane
from support.controlplane.operators import OperatorProcess, wait_idle
from support.controlplane.pipelines import PIPELINE_LABEL, build_pipeline
from support.controlplane.server.api import Api, eventually

CROWD, TENANT, NAME = "crowd", "tenant", "mine"

BUDGETS: Mapping[str, float] = {
    "edit_p95_s": 3.0,
    "edit_after_p95_s": 3.0,
    "rss_peak_mib": 300,
    "rss_after_restart_peak_mib": 300,
    "unhealthy_answers": 0,
}


class Peak:
    """Samples the operator's memory and health until it is closed.

    `rss` is the largest memory in bytes, `unhealthy` the number of answers of /healthz other than 200.
    """

    def __init__(self, operator: OperatorProcess) -> None:
        self._operator = operator
        self._done = threading.Event()
        self.rss = self.unhealthy = 0
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def _sample(self) -> None:
        while not self._done.wait(0.5):
            self.rss = max(self.rss, self._operator.rss_bytes())
            self.unhealthy += self._operator.http("health", "/healthz")[0] != 200

    def close(self) -> None:
        """Stop sampling."""
        self._done.set()
        self._thread.join()


def edit_many(tenant: Api, count: int, pause_s: float) -> list[float]:
    """Returns the seconds from each edit of the tenant's pipeline until its Deployment shows it."""
    took = []
    for number in range(count):
        replicas = 2 + number % 2
        stages = tenant.get("OmniPipeline", NAME)["spec"]["stages"]
        stages[0]["replicas"] = replicas
        began = time.monotonic()
        tenant.patch("OmniPipeline", NAME, {"spec": {"stages": stages}})

        def is_applied(wanted: int = replicas) -> bool:
            found = tenant.list("Deployment", labels=f"{PIPELINE_LABEL}={NAME}")
            return any(item["spec"]["replicas"] == wanted for item in found)

        eventually(is_applied, timeout_s=120, every_s=0.05, why="the edit is applied")
        took.append(time.monotonic() - began)
        time.sleep(pause_s)
    return took


def fill(crowd: Api, pipelines: int, rate: float) -> None:
    """Create the crowd's pipelines, at most `rate` per second."""
    started = time.monotonic()
    for index in range(pipelines):
        time.sleep(max(0.0, started + index / rate - time.monotonic()))
        crowd.create(build_pipeline(f"p{index}"))


def count_reconciles(operator: OperatorProcess) -> float:
    """Returns the number of reconciles since the operator's start, whatever their result."""
    samples = operator.metrics().items()
    return sum(value for name, value in samples if name.startswith("omni_operator_reconcile_total"))


def measure_restart(operator: OperatorProcess, pipelines: int) -> float:
    """Returns the seconds from the start of the operator's process until it has made `pipelines` reconciles."""
    age_s, started = process_age_s(operator.child.pid), time.monotonic()
    eventually(
        lambda: count_reconciles(operator) >= pipelines, timeout_s=900, every_s=1, why="all pipelines are reconciled"
    )
    return age_s + time.monotonic() - started


def measure(
    directory: Path, pipelines: int, most: int | None, rate: float, config_maps: int, edits: int
) -> dict[str, float]:
    """Run all phases on one control plane. Returns their figures.

    `most`: the operator's limit of pipelines in a namespace; None for its default.
    """
    flags = [] if most is None else [f"--max-pipelines={most}"]
    crds = sorted((ROOT / "manifests" / "crd").glob("*.yaml"))
    with ControlPlane(directory / "control-plane", crds=crds) as plane:
        crowd, tenant = plane.create_namespace(CROWD), plane.create_namespace(TENANT)
        for index in range(config_maps):
            metadata = {"name": f"foreign-{index}", "labels": {PIPELINE_LABEL: "p0"}}
            crowd.create(
                {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"x": "x" * (MIB - 4096)}}
            )
        say("ConfigMaps are there")
        with OperatorProcess(plane.kubeconfig, directory, *flags) as operator:
            peak = Peak(operator)
            tenant.create(build_pipeline(NAME))
            wait_idle(operator)
            empty_mib = operator.rss_bytes() / MIB
            cpu_s = operator.cpu_s()
            filling = threading.Thread(target=fill, args=(crowd, pipelines, rate))
            filling.start()
            during = edit_many(tenant, edits, pause_s=max(0.1, pipelines / rate / edits / 2))
            filling.join()
            say(f"{pipelines} pipelines are made, {operator.rss_bytes() / MIB:.0f} MiB")
            wait_idle(operator, quiet_s=5, timeout_s=1800)
            cpu_ms = (operator.cpu_s() - cpu_s) * 1000
            after = edit_many(tenant, edits, pause_s=0.1)
            peak.close()
            figures = {
                "edit_p50_s": round(quantile(during, 0.5), 3),
                "edit_p95_s": round(quantile(during, 0.95), 3),
                "edit_after_p95_s": round(quantile(after, 0.95), 3),
                "cpu_ms_per_pipeline": round(cpu_ms / pipelines, 1),
                "rss_before_mib": round(empty_mib, 1),
                "rss_at_rest_mib": round(operator.rss_bytes() / MIB, 1),
                "rss_peak_mib": round(peak.rss / MIB, 1),
                "unhealthy_answers": peak.unhealthy,
            }
        with OperatorProcess(plane.kubeconfig, directory, *flags) as second:
            peak = Peak(second)
            figures["restart_all_visited_s"] = round(measure_restart(second, pipelines + 1), 1)
            peak.close()
            figures["rss_after_restart_peak_mib"] = round(peak.rss / MIB, 1)
            figures["unhealthy_answers"] += peak.unhealthy
        return figures


def make_report(pipelines: int, most: int | None, rate: float, config_maps: int, edits: int) -> Report:
    """Run the bench. Returns its report; the arguments are those of `measure`."""
    with tempfile.TemporaryDirectory(prefix="omnipipeline-bench-") as temporary:
        figures = measure(Path(temporary), pipelines, most, rate, config_maps, edits)
    rows: list[Row] = []
    for name, value in figures.items():
        budget = BUDGETS.get(name)
        rows.append({"figure": name, "value": value, "at most": budget, "met": budget is None or value <= budget})
    limit = "the default limit of pipelines" if most is None else f"at most {most} pipelines"
    note = (
        f"{pipelines} pipelines in a namespace, {rate:g} a second, {limit}; {config_maps} foreign ConfigMaps of 1 MiB"
    )
    return Report({"figures": rows}, [], [note])


def main() -> int:
    """Run the bench and store its result. Returns 1 if a budget is exceeded, else 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.operator_tenants", description=__doc__.splitlines()[0])
    parser.add_argument("--pipelines", type=int, default=2000)
    parser.add_argument("--max-pipelines", type=int, help="the operator's limit of pipelines in a namespace")
    parser.add_argument("--rate", type=float, default=4.0, help="pipelines created a second")
    parser.add_argument("--config-maps", type=int, default=300)
    parser.add_argument("--edits", type=int, default=40)
    options = parser.parse_args()
    report, problems = record(
        "operator-tenants" if options.max_pipelines is None else "operator-tenants-all",
        lambda: make_report(options.pipelines, options.max_pipelines, options.rate, options.config_maps, options.edits),
        RESULTS,
    )
    over = [f"{row['figure']} over its budget" for row in report.tables["figures"] if not row["met"]]
    for problem in [*problems, *over]:
        print(f"FAILED {problem}", file=sys.stderr)
    return int(bool(problems or over))


if __name__ == "__main__":
    sys.exit(main())
