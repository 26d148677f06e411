"""`omnipipe logs`: the lines of a stage, or of one request through all stages and the gateway, in the order of time.

Stages write JSON in pods and text in local runs; each line names its stage and its request.
"""

from __future__ import annotations

import heapq
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from omni_cli.cluster.access import Cluster, ClusterError, Document
from omni_proto.pod_contract import PIPELINE_LABEL, STAGE_LABEL

GATEWAYS: Final = {"app.kubernetes.io/name": "omnipipeline-gateway"}
MAX_LINE_CHARS: Final = 1 << 16
"""Longer lines are cut."""
_TEXT: Final = re.compile(r"(?P<time>\d{4}-\d\d-\d\dT\S+) (?P<level>[A-Z]+) (?P<rest>.*)", re.DOTALL)


class LogsError(Exception):
    """There are no such logs; the message says what there is."""


@dataclass(frozen=True, slots=True)
class LogSource:
    """Where lines come from: a pod, or the log of a local process."""

    stage: str
    """Stage, or `gateway`."""
    name: str
    """Pod or file."""


@dataclass(order=True, slots=True)
class LogEntry:
    """One line, with the lines that continue it, such as those of a traceback."""

    time: str
    source: LogSource = field(compare=False)
    text: str = field(compare=False)
    """The line without its time."""
    level: str = field(default="", compare=False)
    fields: dict[str, Any] = field(default_factory=dict, compare=False)
    """The JSON object; empty for text."""

    def mentions(self, request: str) -> bool:
        """Returns whether the entry is about a request: its id is a whole word of it."""
        if self.fields:
            return request in (self.fields.get("request_id"), self.fields.get("request"))
        return bool(re.search(rf"(?<![\w-]){re.escape(request)}(?![\w-])", self.text))

    def to_json(self) -> dict[str, Any]:
        """Returns the entry for -o json and -o yaml."""
        said = self.fields or {"time": self.time, "level": self.level, "message": self.text}
        return {"from": self.source.name, "stage": self.source.stage, **said}


def parse(lines: Iterable[str], source: LogSource) -> Iterator[LogEntry]:
    """Yields the entries of a log. A line that is neither JSON nor begins with a time continues the entry before it, or
    has no time if it is the first."""
    last: LogEntry | None = None
    for raw in lines:
        line = raw[:MAX_LINE_CHARS].rstrip()
        found = _parse_line(line, source)
        if found is None and last is not None:
            if len(last.text) < MAX_LINE_CHARS:
                last.text += f"\n{line}"
            continue
        if last is not None:
            yield last
        last = found or LogEntry("", source, line)
    if last is not None:
        yield last


def _parse_line(line: str, source: LogSource) -> LogEntry | None:
    if line.startswith("{"):
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError):
            return None
        if isinstance(fields, dict) and isinstance(fields.get("time"), str):
            return LogEntry(fields["time"], source, _words(fields), str(fields.get("level", "")), fields)
    if match := _TEXT.match(line):
        return LogEntry(match["time"], source, match["rest"], match["level"])
    return None


def _words(fields: dict[str, Any]) -> str:
    shown = {key: value for key, value in fields.items() if key not in ("time", "level", "stage", "logger", "message")}
    return " ".join(
        [str(fields.get("message", "")), *(f"{key}={value}" for key, value in shown.items() if value != "")]
    )


def merge(logs: Sequence[Iterable[LogEntry]]) -> Iterator[LogEntry]:
    """Yields the entries of all logs by time. Each log is in order already, so none is held in memory."""
    return heapq.merge(*logs, key=lambda entry: entry.time)


def local_logs(directory: Path) -> dict[LogSource, Iterable[str]]:
    """Returns the lines of each log that `omnipipe run --log-dir` wrote. Raises LogsError."""
    files = sorted(directory.glob("*.log"))
    if not files:
        raise LogsError(f"{directory} has no *.log; give the directory of omnipipe run --log-dir")
    return {LogSource(path.stem, path.name): _read_lines(path) for path in files}


def _read_lines(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8", errors="replace") as file:
        yield from file


def pod_logs(
    cluster: Cluster, pipeline: str | None, *, since_s: int, tail: int | None
) -> dict[LogSource, Iterable[str]]:
    """Returns the lines of each stage pod of a pipeline, or of all pipelines of the namespace, and of the gateways.

    tail: the last lines of each pod; None: all. Raises ClusterError, and LogsError if there is no pod.
    """
    found: dict[LogSource, Iterable[str]] = {}
    for pod in cluster.pods({PIPELINE_LABEL: pipeline or ""}):
        stage = pod["metadata"]["labels"].get(STAGE_LABEL, "")
        found[LogSource(stage, pod["metadata"]["name"])] = _pod_lines(cluster, pod, "stage", since_s, tail)
    if not found:
        what = f"pipeline {pipeline}" if pipeline else f"namespace {cluster.namespace}"
        raise LogsError(f"{what} has no stage pods; omnipipe list shows the pipelines")
    for pod in _gateways(cluster):
        found[LogSource("gateway", pod["metadata"]["name"])] = _pod_lines(cluster, pod, "gateway", since_s, tail)
    return found


def _gateways(cluster: Cluster) -> list[Document]:
    selector = ",".join(f"{key}={value}" for key, value in GATEWAYS.items())
    try:
        return cluster.items("/api/v1/pods", labelSelector=selector)
    except ClusterError as error:
        if error.status != 403:
            raise
        return []  # who may read only one namespace sees its stages


def _pod_lines(cluster: Cluster, pod: Document, container: str, since_s: int, tail: int | None) -> Iterator[str]:
    metadata = pod["metadata"]
    path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/log"
    query = {"container": container, "sinceSeconds": str(since_s)} | ({} if tail is None else {"tailLines": str(tail)})
    try:
        yield from cluster.lines(path, **query)
    except ClusterError as error:
        # A container that has not started has no log (400). The other pods' lines are wanted all the same.
        if error.status not in (400, 404):
            raise


def select(logs: dict[LogSource, Iterable[str]], target: str | None) -> Iterator[LogEntry]:
    """Yields the entries of a stage, of a request, or all, by time."""
    stages = {source.stage for source in logs}
    if target in stages:
        logs = {source: lines for source, lines in logs.items() if source.stage == target}
    entries = merge([parse(lines, source) for source, lines in logs.items()])
    return entries if target is None or target in stages else (entry for entry in entries if entry.mentions(target))


def format_entry(entry: LogEntry, width: int) -> str:
    """Returns an entry as a line: time of day, stage, text. width: characters of the longest stage name."""
    level = "" if entry.level in ("INFO", "") else f"{entry.level} "
    return f"{entry.time[11:23]:12} {entry.source.stage:{width}} {level}{entry.text}"
