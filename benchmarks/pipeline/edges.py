"""Reads the cost of the edges from the stages' own metrics: seconds until the transport accepted each chunk."""

from __future__ import annotations

import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from omni_proto.pod_contract import StageMetric


@dataclass(frozen=True, slots=True)
class EdgeTotals:
    """Counters of one stage's output edges."""

    messages: float = 0.0
    wire_s: float = 0.0
    bytes: float = 0.0

    def since(self, earlier: EdgeTotals) -> EdgeTotals:
        """Returns the increase since an earlier reading."""
        return EdgeTotals(self.messages - earlier.messages, self.wire_s - earlier.wire_s, self.bytes - earlier.bytes)


def read_edges(ports: Mapping[str, int]) -> dict[str, EdgeTotals]:
    """Returns the counters of every stage that has sent rows."""
    totals = {}
    for stage, port in ports.items():
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            totals[stage] = parse_edges(answer.read().decode())
    return {stage: total for stage, total in totals.items() if total.messages}


def parse_edges(text: str) -> EdgeTotals:
    """Returns the counters in the text of /metrics."""
    chunks = StageMetric.EDGE_CHUNK_SECONDS
    values = {f"{chunks}_count": 0.0, f"{chunks}_sum": 0.0, str(StageMetric.EDGE_BYTES): 0.0}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name in values and sample.labels.get("direction", "sent") == "sent":
                values[sample.name] += sample.value
    return EdgeTotals(*values.values())
