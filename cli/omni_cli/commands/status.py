"""`omnipipe status`: reads one OmniPipeline from a cluster and draws it, once or whenever it changes, or its cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from omni_cli.cluster.access import Cluster, ClusterError, Document
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


Json = Mapping[str, Any]

_GOOD = {
    "Ready": "True",
    "Progressing": "False",
    "Degraded": "False",
    "SpecUnderstood": "True",
    "RouteAccepted": "True",
}
_BAD_STYLES = {"Ready": "red", "Progressing": "yellow", "Degraded": "red"}
POLL_S = 1.0


def draw_status(document: Json) -> RenderableType:
    """Returns the drawing of an OmniPipeline. document is the resource as the API server returns it."""
    metadata, status = document["metadata"], document.get("status") or {}
    head = Text.assemble((metadata["name"], "bold"), f"  namespace {metadata['namespace']}")
    for url in ("url", "routeUrl"):
        if status.get(url):
            head.append(f"  {status[url]}")
    if not status.get("conditions"):
        return Group(head, Text("no status yet: is the operator running?", "yellow"), _draw_graph(document, status))
    parts: list[RenderableType] = [head]
    if status.get("observedGeneration") != metadata.get("generation"):
        parts.append(Text("the operator has not seen the last edit yet; this is the state before it", "yellow"))
    taken = [one for one in status.get("names", ()) if not one.get("since")]
    names = [Text(f"the name {one['name']} {one.get('message', '')}", "yellow") for one in taken]
    return Group(*parts, _draw_conditions(status["conditions"]), *names, _draw_graph(document, status))


def _draw_conditions(conditions: Sequence[Json]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for condition in conditions:
        kind = condition["type"]
        style = "green" if condition["status"] == _GOOD.get(kind) else _BAD_STYLES.get(kind, "yellow")
        table.add_row(
            kind, Text(condition["status"], style), Text(condition["reason"], style), Text(condition.get("message", ""))
        )
    return table


def _draw_graph(document: Json, status: Json) -> RenderableType:
    stages: Sequence[Json] = document["spec"]["stages"]
    entries = {entry["name"]: entry for entry in status.get("stages") or ()}
    roots = [stage for stage in stages if not stage.get("inputs")]
    trees = [_draw_stage(stage, stages, entries) for stage in roots]
    known = {stage["name"] for stage in stages}
    former = [entry for name, entry in entries.items() if name not in known]
    if former:
        # Another revision serves, and the spec no longer shows its graph.
        tree = Tree(Text("still serving, from an older spec:"))
        for entry in former:
            tree.add(_draw_entry(entry["name"], entry))
        trees.append(tree)
    return Group(*trees)


def _draw_stage(stage: Json, stages: Sequence[Json], entries: Mapping[str, Json], mode: str = "") -> Tree:
    tree = Tree(_draw_entry(stage["name"], entries.get(stage["name"]), stage, mode))
    for reader in stages:
        for edge in reader.get("inputs") or ():
            if edge["from"] == stage["name"]:
                tree.add(_draw_stage(reader, stages, entries, edge.get("mode", "Full")))
    return tree


def _draw_entry(name: str, entry: Json | None, stage: Json | None = None, mode: str = "") -> Text:
    entry = entry or {}
    wanted, ready = entry.get("replicas", 0), entry.get("readyReplicas", 0)
    style = "green" if wanted and ready >= wanted else "yellow" if ready else "red" if wanted else "dim"
    text = Text.assemble((f"{mode} -> ", "dim") if mode else "", ("● ", style), (name, "bold"))
    text.append(f"  {ready}/{wanted} ready" if entry else "  not there yet", style)
    if entry.get("revision"):
        text.append(f"  revision {entry['revision']}")
    if entry.get("model"):
        text.append(f"  {entry['model']}", "dim")
    if stage is not None:
        text.append(f"  {stage['component']}", "dim")
        if stage.get("outputs"):
            text.append(f"  returns {', '.join(stage['outputs'])}", "dim")
    if entry.get("message"):
        text.append(f"\n{entry['message']}", style)
    return text


def draw_list(documents: Sequence[Json]) -> RenderableType:
    """Returns a table of OmniPipelines."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for title in ("NAMESPACE", "NAME", "READY", "REASON", "STAGES", "URL"):
        table.add_column(title, overflow="fold")
    for document in documents:
        metadata, status = document["metadata"], document.get("status") or {}
        ready: Json = next((one for one in status.get("conditions") or () if one["type"] == "Ready"), {})
        style = {"True": "green", "False": "red"}.get(ready.get("status", ""), "yellow")
        state = (Text(ready.get("status", "-"), style), ready.get("reason", "no status yet"))
        table.add_row(
            metadata["namespace"], metadata["name"], *state, status.get("readyStages", "-"), status.get("url", "-")
        )
    return table


def show_status(cluster: Cluster, name: str, watch: bool, console: Console) -> None:
    """Draw the pipeline. With watch, draw it again after each change, until it is deleted or the user interrupts.

    Raises ClusterError.
    """
    if not watch:
        console.print(draw_status(cluster.pipeline(name)))
        return
    follow(changes(lambda: cluster.pipeline(name), lambda: time.sleep(POLL_S)), console)


def changes(read: Callable[[], Document], pause: Callable[[], None]) -> Iterator[Document]:
    """Yields the document first as it is, then whenever it has changed.

    Raises ClusterError if the first read fails, or once the pipeline no longer exists.
    """
    version = None
    for number in count():
        if number:
            pause()
        try:
            document = read()
        except ClusterError as error:
            # A restart of the API server does not end a watch; the deletion of the pipeline does.
            if number == 0 or error.status == 404:
                raise
            continue
        if document["metadata"].get("resourceVersion") != version:
            version = document["metadata"].get("resourceVersion")
            yield document


def follow(documents: Iterator[Document], console: Console) -> None:
    """Draw each document: in place on a terminal, one below the other elsewhere."""
    if not console.is_terminal:
        for document in documents:
            console.print(draw_status(document))
        return
    with Live(console=console, auto_refresh=False) as live:
        for document in documents:
            live.update(draw_status(document), refresh=True)
