"""`omnipipe top`: what each pod of a pipeline does now, from the metrics that the stage servers export."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from omni_cli.cluster.access import Cluster, ClusterError, Document
from omni_cli.cluster.forward import dial, is_ready
from omni_proto.pipeline import is_accelerator
from omni_proto.pod_contract import METRICS_PORT, PIPELINE_LABEL, STAGE_LABEL, StageMetric

TIMEOUT_S: Final = 10.0
MAX_BYTES: Final = 16 << 20
RUNNING, WAITING, KV, TOKENS = (
    *("vllm:num_requests_running", "vllm:num_requests_waiting"),
    *("vllm:kv_cache_usage_perc", "vllm:generation_tokens_total"),
)


class TopError(Exception):
    """There is nothing to show; the message says why."""


@dataclass(frozen=True, slots=True)
class Pod:
    """A stage server whose metrics can be read."""

    stage: str
    name: str
    gpus: int
    """Devices that the pod holds."""
    connect: Callable[[], socket.socket]
    """Connects to its metrics port. Raises OSError or ClusterError."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The metrics of a pod at one time."""

    at_s: float
    """On a monotonic clock."""
    values: Mapping[str, float]
    """Sum of each metric over its labels."""

    @classmethod
    def of(cls, text: str, at_s: float) -> Sample:
        """Returns the sample in a text of Prometheus' exposition format."""
        from prometheus_client.parser import text_string_to_metric_families

        values: dict[str, float] = {}
        for family in text_string_to_metric_families(text):
            for one in family.samples:
                values[one.name] = values.get(one.name, 0.0) + one.value
        return cls(at_s, values)


@dataclass(frozen=True, slots=True)
class Row:
    """What a pod does. None: the pod does not say, for example because it has no KV cache."""

    stage: str
    pod: str
    ready: bool = False
    running: float | None = None
    """Requests in the engine."""
    waiting: float | None = None
    """Requests that wait, in the engine's queue or for KV cache."""
    limit: float | None = None
    """Requests that the stage serves at once."""
    kv: float | None = None
    """Share of the KV cache in use, 0 to 1."""
    tokens_per_s: float | None = None
    audio_per_s: float | None = None
    """Seconds of audio that clients got in a second; only the entry counts it."""
    gpus: int = 0
    problem: str = ""
    """Why the metrics could not be read."""


def read_metrics(connect: Callable[[], socket.socket]) -> str:
    """Returns the text of /metrics. Raises OSError, HTTPException or ClusterError."""
    connection = http.client.HTTPConnection("localhost", timeout=TIMEOUT_S)
    connection.sock = connect()
    with contextlib.closing(connection):
        connection.sock.settimeout(TIMEOUT_S)
        connection.request("GET", "/metrics", headers={"Accept": "text/plain; version=0.0.4"})
        response = connection.getresponse()
        if response.status != 200:
            raise OSError(f"/metrics answers {response.status}")
        return response.read(MAX_BYTES).decode(errors="replace")


def compute_row(pod: Pod, before: Sample | None, now: Sample) -> Row:
    """Returns the row of a pod; rates need an earlier sample, and are None if a counter began again."""
    values = now.values
    waiting = [values[name] for name in (WAITING, StageMetric.WAITING_REQUESTS) if name in values]
    return Row(
        stage=pod.stage,
        pod=pod.name,
        ready=values.get(StageMetric.READY, 0.0) > 0,
        running=values.get(RUNNING, values.get(StageMetric.INFLIGHT_REQUESTS)),
        waiting=sum(waiting) if waiting else None,
        limit=values.get(StageMetric.INFLIGHT_LIMIT_REQUESTS),
        kv=values.get(KV),
        tokens_per_s=_rate(TOKENS, before, now),
        audio_per_s=_rate(StageMetric.PIPELINE_AUDIO_SECONDS, before, now),
        gpus=pod.gpus,
    )


def _rate(name: str, before: Sample | None, now: Sample) -> float | None:
    if before is None or name not in before.values or name not in now.values:
        return None
    grown, seconds = now.values[name] - before.values[name], now.at_s - before.at_s
    return grown / seconds if grown >= 0 and seconds > 0 else None


def cluster_pods(cluster: Cluster, pipeline: str) -> list[Pod]:
    """Returns the stage pods of a pipeline in the order of its spec. Raises ClusterError and TopError."""
    order = [stage["name"] for stage in cluster.pipeline(pipeline)["spec"]["stages"]]
    found = [pod for pod in cluster.pods({PIPELINE_LABEL: pipeline}) if STAGE_LABEL in pod["metadata"]["labels"]]
    if not found:
        raise TopError(f"pipeline {pipeline} has no pods; omnipipe status {pipeline} says why")
    pods = [_cluster_pod(cluster, pod) for pod in found]
    return sorted(pods, key=lambda pod: (order.index(pod.stage) if pod.stage in order else len(order), pod.name))


def _cluster_pod(cluster: Cluster, pod: Document) -> Pod:
    name, labels = pod["metadata"]["name"], pod["metadata"]["labels"]
    limits = [container.get("resources", {}).get("limits", {}) for container in pod["spec"]["containers"]]
    gpus = sum(int(count) for one in limits for resource, count in one.items() if is_accelerator(resource))

    def connect() -> socket.socket:
        if not is_ready(pod) and not pod.get("status", {}).get("podIP"):
            raise ClusterError(f"{pod.get('status', {}).get('phase', 'Pending')}")
        return dial(cluster, cluster.namespace, name, METRICS_PORT)

    return Pod(labels[STAGE_LABEL], name, gpus, connect)


def local_pods(address_file: Path) -> list[Pod]:
    """Returns the stages of the file that `omnipipe run --address-file` wrote. Raises TopError."""
    try:
        stages = json.loads(address_file.read_text(encoding="utf-8"))["stages"]
        ports = {str(stage): int(one["metrics"]) for stage, one in stages.items()}
    except OSError as error:
        raise TopError(f"cannot read {address_file}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TopError(f"{address_file} is not a file of omnipipe run --address-file") from error

    def connector(port: int) -> Callable[[], socket.socket]:
        return lambda: socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)

    return [Pod(stage, f"127.0.0.1:{port}", 0, connector(port)) for stage, port in ports.items()]


def take_samples(pods: Sequence[Pod]) -> dict[str, Sample | str]:
    """Returns a sample of each pod by its name, or why there is none."""
    found: dict[str, Sample | str] = {}
    for pod in pods:
        try:
            found[pod.name] = Sample.of(read_metrics(pod.connect), time.monotonic())
        except (OSError, http.client.HTTPException, ClusterError, ValueError) as error:
            found[pod.name] = str(error) or type(error).__name__
    return found


def rows(pods: Callable[[], Sequence[Pod]], interval_s: float) -> Iterator[list[Row]]:
    """Yields the rows of all pods, each time after interval_s seconds. Raises what pods raises."""
    before: dict[str, Sample | str] = take_samples(pods())
    while True:
        time.sleep(interval_s)
        present = pods()
        now = take_samples(present)
        yield [_row(pod, before.get(pod.name), now[pod.name]) for pod in present]
        before = now


def _row(pod: Pod, before: Sample | str | None, now: Sample | str) -> Row:
    if isinstance(now, str):
        return Row(pod.stage, pod.name, gpus=pod.gpus, problem=now)
    return compute_row(pod, before if isinstance(before, Sample) else None, now)


def to_json(found: Sequence[Row]) -> list[dict[str, Any]]:
    """Returns the rows for -o json and -o yaml."""
    return [asdict(row) for row in found]


def draw(found: Sequence[Row]) -> Any:
    """Returns the rows as a table of rich."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for title in ("STAGE", "POD"):
        table.add_column(title, overflow="fold")
    for title in ("RUNNING", "WAITING", "KV", "TOKENS/S", "AUDIO S/S", "GPU"):
        table.add_column(title, justify="right")
    for row in found:
        if row.problem:
            table.add_row(row.stage, row.pod, Text(row.problem, "red"))
            continue
        style = "" if row.ready else "yellow"
        running = _number(row.running) + ("" if row.limit is None else f"/{row.limit:g}")
        kv = "-" if row.kv is None else f"{row.kv:.0%}"
        cells = (running, _number(row.waiting), kv, _number(row.tokens_per_s), _number(row.audio_per_s))
        table.add_row(Text(row.stage, style), Text(row.pod, style), *cells, str(row.gpus) if row.gpus else "-")
    return table


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}".removesuffix(".0")
