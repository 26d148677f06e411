"""A real Prometheus server, and functions that run all queries of the dashboards, alerts and runbooks against it.

PrometheusApi queries any server by its URL. PrometheusProcess runs a Prometheus on this machine: the installed one, or
else Debian's. scrape_config relabels targets as our PodMonitor does.
"""

from __future__ import annotations

import json
import math
import re
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import yaml
from tools.observability.grafana import Dashboard
from tools.observability.rules.rule import Alert

from omni_cli.local.ports import pick_ports
from support.processes.foreign_programs import find_debian_programs
from support.processes.polling import PATIENCE_S
from support.processes.process import ChildProcess

ROOT = Path(__file__).resolve().parents[3]
RULES = ROOT / "helm" / "omnipipeline" / "files" / "rules" / "omnipipeline.yaml"


def prometheus_program(name: str) -> str:
    """Returns the path of `prometheus` or `promtool`; see find_debian_programs."""
    return str(find_debian_programs("prometheus", "prometheus", "promtool") / name)


def run_promtool(*arguments: str | Path) -> str:
    """Runs promtool. Returns its output. Raises AssertionError if it fails."""
    command = [prometheus_program("promtool"), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


class PrometheusApi:
    """The HTTP API of a Prometheus."""

    def __init__(self, url: str) -> None:
        self.url = url

    def query(self, expr: str) -> list[dict[str, Any]]:
        """Returns the samples of an instant query. Raises ValueError with the server's message if the query fails."""
        found: list[dict[str, Any]] = self._get("query", query=expr)["result"]
        return found

    def query_range(self, expr: str, start: float, end: float, step: float) -> list[dict[str, Any]]:
        """Returns the series of a range query. Times are in seconds since the epoch.

        Raises ValueError with the server's message if the query fails.
        """
        times = {"start": f"{start:.3f}", "end": f"{end:.3f}", "step": f"{step:g}"}
        found: list[dict[str, Any]] = self._get("query_range", query=expr, **times)["result"]
        return found

    def label_values(self, label: str, series: str) -> list[str]:
        """Returns the values of a label in the matching series."""
        return list(self._get(f"label/{label}/values", **{"match[]": series}))

    def targets(self) -> list[dict[str, Any]]:
        """Returns the active targets."""
        found: list[dict[str, Any]] = self._get("targets", state="active")["activeTargets"]
        return found

    def rules(self) -> list[dict[str, Any]]:
        """Returns the rules of all groups, with the state of their last evaluation."""
        return [rule for group in self._get("rules")["groups"] for rule in group["rules"]]

    def is_ready(self) -> bool:
        """Returns whether the server is ready to answer queries."""
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=5) as answer:  # noqa: S310 - http, ours
                return bool(answer.status == 200)
        except OSError:
            return False

    def _get(self, path: str, **parameters: str) -> Any:
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:  # noqa: S310 - http, ours
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise ValueError(json.load(error).get("error", str(error))) from error


class PrometheusProcess(PrometheusApi):
    """A Prometheus on this machine that scrapes every second. The context manager starts and stops it."""

    def __init__(
        self,
        folder: Path,
        scrape_configs: Sequence[Mapping[str, Any]],
        *,
        host: str = "127.0.0.1",
        network: Path | None = None,
    ) -> None:
        """The server listens on `host`. `network` is the path of a network namespace to run in."""
        (port,) = pick_ports(1)
        super().__init__(f"http://{host}:{port}")
        configuration = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "scrape_configs": list(scrape_configs),
            "rule_files": [str(RULES)],
        }
        file = folder / "prometheus.yaml"
        file.write_text(yaml.safe_dump(configuration))
        command = [
            *([] if network is None else ["nsenter", f"--net={network}"]),
            prometheus_program("prometheus"),
            f"--config.file={file}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={host}:{port}",
        ]
        self._child = ChildProcess("prometheus", command, folder / "prometheus.log")

    def __enter__(self) -> Self:
        self._child.start()
        self._child.wait_until(self.is_ready)
        return self

    def __exit__(self, *_: object) -> None:
        self._child.stop()


# Targets as Kubernetes service discovery describes them, relabelled by the PodMonitor


@dataclass(frozen=True)
class PodTarget:
    """A pod's port, with the metadata of Kubernetes service discovery. Debian's Prometheus has no such discovery."""

    address: str
    namespace: str
    pod: str
    labels: Mapping[str, str]
    port: str = "metrics"

    def static_config(self) -> dict[str, Any]:
        """Returns an entry of static_configs: the target with the labels that service discovery would add."""
        meta = {"namespace": self.namespace, "pod_name": self.pod, "pod_container_port_name": self.port}
        meta |= {f"pod_label_{re.sub('[^a-zA-Z0-9]', '_', name)}": value for name, value in self.labels.items()}
        return {
            "targets": [self.address],
            "labels": {f"__meta_kubernetes_{name}": value for name, value in meta.items()},
        }


def list_targets(
    stages: Mapping[str, Mapping[str, int]], pod_labels: Mapping[str, Mapping[str, str]]
) -> list[PodTarget]:
    """Returns the metrics ports of a local pipeline's stages as if they were pods in the namespace `models`.

    stages: stage -> its ports.
    """
    return [
        PodTarget(f"127.0.0.1:{ports['metrics']}", "models", f"{stage}-0", pod_labels[stage])
        for stage, ports in stages.items()
    ]


def scrape_config(job: str, targets: Iterable[PodTarget], pod_monitor: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the scrape configuration that the Prometheus operator makes from a PodMonitor, but with these targets."""
    (endpoint,) = pod_monitor["spec"]["podMetricsEndpoints"]
    own = [
        {"source_labels": rule["sourceLabels"], "target_label": rule["targetLabel"], "action": rule["action"]}
        for rule in endpoint["relabelings"]
    ]
    return {
        "job_name": job,
        "relabel_configs": [
            {
                "source_labels": ["__meta_kubernetes_pod_container_port_name"],
                "regex": endpoint["port"],
                "action": "keep",
            },
            {"source_labels": ["__meta_kubernetes_namespace"], "target_label": "namespace"},
            {"source_labels": ["__meta_kubernetes_pod_name"], "target_label": "pod"},
            *own,
        ],
        "static_configs": [target.static_config() for target in targets],
    }


# The queries of dashboards, alerts and runbooks


@dataclass(frozen=True)
class Asked:
    """A query and its origin."""

    origin: str
    expr: str


_FIXED = {"__rate_interval": "5m", "__interval": "15s", "__range": "1h"}
_OPERATOR_SERIES = re.compile(r"\bomni_operator_")


def expand(expr: str, variables: Mapping[str, str] | None = None) -> str:
    """Returns the query with Grafana's variables filled in. A variable without a value matches everything (`All`)."""
    chosen = {**_FIXED, **(variables or {})}
    return re.sub(r"\$([a-z_]\w*)", lambda found: chosen.get(found[1], ".*"), expr)


def panel_queries(dashboard: Dashboard, variables: Mapping[str, str] | None = None) -> list[Asked]:
    """Returns the queries of every panel of a dashboard."""
    return [
        Asked(f"{dashboard.title}: {panel.title}", expand(query.expr, variables))
        for panel in dashboard.panels()
        if not panel.only_with
        for query in panel.queries
    ]


def alert_signals(alerts: Iterable[Alert], *, have: Iterable[str] = ()) -> list[Asked]:
    """Returns the alerts' queries without their comparisons.

    `have` names the optional features of the targets. An alert that needs another feature is left out.
    """
    return [
        Asked(f"alert {alert.name}", alert.signal)
        for alert in alerts
        if not alert.only_with or alert.only_with in set(have)
    ]


def runbook_queries(**places: str) -> list[Asked]:
    """Returns the queries of the runbooks, with capitalized placeholders filled in (NAMESPACE="models").

    Those about the gateway are left out: they have answers only where one is scraped.
    """
    pages = sorted((ROOT / "docs" / "runbooks").glob("[!g]*.md"))
    found = [
        (page, expr) for page in pages for expr in re.findall(r"^```promql\n(.*?)^```$", page.read_text(), re.M | re.S)
    ]
    return [
        Asked(f"runbook {page.stem}", re.sub("|".join(places), lambda place: places[place[0]], expr.strip()))
        for page, expr in found
    ]


def is_about_operator(expr: str) -> bool:
    """Returns whether a query uses the operator's metrics."""
    return _OPERATOR_SERIES.search(expr) is not None


def find_unanswered(prometheus: PrometheusApi, questions: Iterable[Asked]) -> list[str]:
    """Returns the queries that fail, have no series or have only NaN values; empty if all are answered."""
    problems = []
    for asked in questions:
        try:
            samples = prometheus.query(asked.expr)
        except ValueError as error:
            problems.append(f"{asked.origin}: {error}: {asked.expr}")
            continue
        if not samples:
            problems.append(f"{asked.origin}: no series: {asked.expr}")
        elif all(math.isnan(float(sample["value"][1])) for sample in samples):
            problems.append(f"{asked.origin}: not a number: {asked.expr}")
    return problems


def find_empty_variables(prometheus: PrometheusApi, dashboard: Dashboard) -> list[str]:
    """Returns the variables of a dashboard that have no values to choose from."""
    problems = []
    for variable in dashboard.variables:
        found = re.fullmatch(r"label_values\((.+), (\w+)\)", variable.query)
        assert found, variable.query
        if not prometheus.label_values(found[2], expand(found[1])):
            problems.append(f"{dashboard.title}: ${variable.name}: no values: {variable.query}")
    return problems


TOO_SLOW = frozenset({"OmniPipelineFirstAudioSlow", "OmniPipelineSlowerThanPlayback", "OmniPipelineAudioInterrupted"})
"""Alerts that may be pending: a pipeline on a CPU can really be slower than playback."""


def find_broken_rules(prometheus: PrometheusApi, alerts: Sequence[Alert]) -> list[str]:
    """Returns alerts that the server lacks, cannot evaluate, or reports as firing or (except TOO_SLOW) pending."""
    rules = {rule["name"]: rule for rule in prometheus.rules()}
    problems = [f"{alert.name}: no such rule" for alert in alerts if alert.name not in rules]
    for alert in alerts:
        rule = rules.get(alert.name, {"health": "ok", "state": "inactive"})
        quiet = {"inactive", "pending"} if alert.name in TOO_SLOW else {"inactive"}
        if rule["health"] != "ok" or rule["state"] not in quiet:
            problems.append(f"{alert.name}: {rule['health']}, {rule['state']}: {rule.get('lastError', rule['alerts'])}")
    return problems
