"""OpenTelemetry's own collector, built from its Go modules. It receives OTLP and writes lines of JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from omni_cli.local.ports import pick_ports
from support.controlplane.binaries import find_binaries
from support.processes.process import ChildProcess, listening


@dataclass(frozen=True)
class CollectedSpan:
    """A span that the collector wrote."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]


@dataclass(frozen=True)
class OtelCollector:
    """A collector."""

    endpoint: str
    written: Path

    def spans(self) -> list[CollectedSpan]:
        """Returns all spans that the collector has received. Call this when it has ended."""
        return [span for line in self.written.read_text().splitlines() for span in _read_spans(json.loads(line))]


@contextmanager
def run_collector(folder: Path) -> Iterator[OtelCollector]:
    """Runs a collector until the block ends."""
    (port,) = pick_ports(1)
    written, config = folder / "spans.jsonl", folder / "collector.yaml"
    config.write_text(
        yaml.safe_dump(
            {
                "receivers": {"otlp": {"protocols": {"grpc": {"endpoint": f"127.0.0.1:{port}"}}}},
                "exporters": {"file": {"path": str(written)}},
                "service": {
                    "pipelines": {"traces": {"receivers": ["otlp"], "exporters": ["file"]}},
                    "telemetry": {"metrics": {"level": "none"}},
                },
            }
        )
    )
    program = find_binaries("otelcol")["otelcol"]
    process = ChildProcess("otelcol", [program, "--config", f"file:{config}"], folder / "otelcol.log")
    process.start()
    try:
        process.wait_until(lambda: listening(port))
        yield OtelCollector(f"http://127.0.0.1:{port}", written)
    finally:
        process.stop()


def _read_spans(line: dict[str, Any]) -> Iterator[CollectedSpan]:
    for resource in line["resourceSpans"]:
        service = _attributes(resource["resource"])["service.name"]
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                yield CollectedSpan(
                    service,
                    span["name"],
                    span["traceId"],
                    span["spanId"],
                    span.get("parentSpanId", ""),
                    int(span["startTimeUnixNano"]),
                    int(span["endTimeUnixNano"]),
                    _attributes(span),
                )


def _attributes(holder: dict[str, Any]) -> dict[str, Any]:
    return {item["key"]: next(iter(item["value"].values())) for item in holder.get("attributes", ())}
