"""`omnipipe status --cost`: what the pods of each stage cost and did since they started, from their metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from omni_cli.cluster.access import Cluster
from omni_cli.commands.top import Pod, Sample, cluster_pods, take_samples
from omni_proto.pod_contract import StageMetric


@dataclass(frozen=True, slots=True)
class StageCost:
    """The pods of a stage that run now, since each of them started. None: no pod says."""

    stage: str
    pods: int
    unread: int
    """Pods whose metrics could not be read; the figures are without them."""
    pod_seconds: float = 0.0
    gpu_seconds: float = 0.0
    utilisation: float | None = None
    """Time of requests in the engines, divided by that of as many requests as they run at once."""
    audio_per_gpu_second: float | None = None
    """Seconds of audio that clients got in a second, for each GPU of the stage's pods."""


def compute_costs(pods: Sequence[Pod], samples: Mapping[str, Sample | str]) -> list[StageCost]:
    """Returns the cost of each stage, in the order of the pods. samples: by the pods' names, or why there is none."""
    read = {pod.name: sample.values for pod in pods if isinstance(sample := samples.get(pod.name), Sample)}
    audio = [_each_second(values, StageMetric.PIPELINE_AUDIO_SECONDS) for values in read.values()]
    spoken = [each for each in audio if each is not None]
    found = []
    for stage in dict.fromkeys(pod.stage for pod in pods):
        own = [pod for pod in pods if pod.stage == stage]
        known = [(pod, read[pod.name]) for pod in own if pod.name in read]
        ages = [(pod, values.get(StageMetric.POD_SECONDS, 0.0)) for pod, values in known]
        could = sum(
            values.get(StageMetric.ENGINE_LIMIT_REQUESTS, 0.0) * values.get(StageMetric.POD_SECONDS, 0.0)
            for _, values in known
        )
        ran = sum(values.get(StageMetric.ENGINE_RUNNING_SECONDS, 0.0) for _, values in known)
        gpus = sum(pod.gpus for pod in own)
        found.append(
            StageCost(
                stage,
                len(own),
                len(own) - len(known),
                sum(age for _, age in ages),
                sum(pod.gpus * age for pod, age in ages),
                ran / could if could else None,
                sum(spoken) / gpus if spoken and gpus else None,
            )
        )
    return found


def _each_second(values: Mapping[str, float], name: str) -> float | None:
    age = values.get(StageMetric.POD_SECONDS, 0.0)
    return values[name] / age if name in values and age > 0 else None


def read_costs(cluster: Cluster, pipeline: str) -> list[StageCost]:
    """Returns the cost of each stage of a pipeline in a cluster. Raises ClusterError and TopError."""
    pods = cluster_pods(cluster, pipeline)
    return compute_costs(pods, take_samples(pods))


def to_json(found: Sequence[StageCost]) -> list[dict[str, Any]]:
    """Returns the costs for -o json and -o yaml."""
    return [asdict(one) for one in found]


def draw(found: Sequence[StageCost]) -> Any:
    """Returns the costs as a table of rich."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("STAGE")
    for title in ("PODS", "POD-HOURS", "GPU-HOURS", "UTILISATION", "AUDIO S/GPU S"):
        table.add_column(title, justify="right")
    for one in found:
        table.add_row(
            one.stage,
            f"{one.pods}" + (f" ({one.unread} not read)" if one.unread else ""),
            f"{one.pod_seconds / 3600:.2f}",
            f"{one.gpu_seconds / 3600:.2f}" if one.gpu_seconds else "-",
            "-" if one.utilisation is None else f"{one.utilisation:.1%}",
            "-" if one.audio_per_gpu_second is None else f"{one.audio_per_gpu_second:.2f}",
        )
    return table
