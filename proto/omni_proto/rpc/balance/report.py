"""A pod's load, and its form on the wire: ORCA's report in gRPC metadata, which Envoy and gRPC's weighted_round_robin
read too (gRFC A51, A58)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from google.protobuf.message import DecodeError

from omni_proto.stage.v1 import orca_pb2

ORCA_KEY: Final = "endpoint-load-metrics-bin"
"""The trailer in which ORCA's readers find the report. gRPC core 1.85 does not show it to a call's caller."""
LOAD_KEY: Final = "omni-load-bin"
"""Metadata key of the same bytes for this project's callers. Stages send it with Accepted too, because the trailer of a
long answer says little about now."""
MAX_REPORT_BYTES: Final = 1024
"""A longer report is ignored."""
_RUNNING, _WAITING, _QUEUED_S, _FREE_KV = "omni.running", "omni.waiting", "omni.queued_seconds", "omni.free_kv"


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What a pod says about its own load."""

    running: float = 0.0
    """Requests that the pod works on."""
    waiting: float = 0.0
    """Requests that it has accepted and not begun."""
    queued_s: float = 0.0
    """Seconds of work in the queue: when a request that came now would begin."""
    free_kv: float = 1.0
    """Share of the KV cache that is free, 0 to 1; 1 without a KV cache."""
    utilization: float = 0.0
    """Share of the pod's capacity in use; above 1 with a queue."""
    per_second: float = 0.0
    """Requests that ended per second."""
    errors_per_second: float = 0.0
    """Those of them that failed by the pod's own fault."""

    @property
    def requests(self) -> float:
        """Requests in the pod."""
        return self.running + self.waiting

    def to_metadata(self) -> tuple[tuple[str, bytes], ...]:
        """Returns the metadata to send with Accepted."""
        return ((LOAD_KEY, self.encode()),)

    def to_trailer(self) -> tuple[tuple[str, bytes], ...]:
        """Returns the metadata to send as a trailer."""
        encoded = self.encode()
        return ((LOAD_KEY, encoded), (ORCA_KEY, encoded))

    def encode(self) -> bytes:
        """Returns the report as a serialized xds.data.orca.v3.OrcaLoadReport."""
        named = {
            _RUNNING: self.running,
            _WAITING: self.waiting,
            _QUEUED_S: self.queued_s,
            _FREE_KV: self.free_kv,
        }
        message = orca_pb2.OrcaLoadReport(
            rps_fractional=self.per_second,
            eps=self.errors_per_second,
            application_utilization=self.utilization,
            named_metrics=named,
        )
        return message.SerializeToString()


def decode_report(data: bytes) -> LoadReport | None:
    """Returns the report in the bytes. None if they are none, or if a figure is negative or not finite: another server
    may answer here."""
    if len(data) > MAX_REPORT_BYTES:
        return None
    try:
        message = orca_pb2.OrcaLoadReport.FromString(data)
    except DecodeError:
        return None
    named = message.named_metrics
    if _RUNNING not in named:
        return None
    report = LoadReport(
        running=named[_RUNNING],
        waiting=named.get(_WAITING, 0.0),
        queued_s=named.get(_QUEUED_S, 0.0),
        free_kv=named.get(_FREE_KV, 1.0),
        utilization=message.application_utilization,
        per_second=message.rps_fractional,
        errors_per_second=message.eps,
    )
    figures = (report.running, report.waiting, report.queued_s, report.free_kv, report.utilization)
    return report if all(math.isfinite(figure) and figure >= 0 for figure in figures) else None


def find_report(metadata: Iterable[tuple[str, str | bytes]] | None) -> LoadReport | None:
    """Returns the report in a call's initial or trailing metadata, or None."""
    for key, value in metadata or ():
        if key == LOAD_KEY and isinstance(value, bytes):
            return decode_report(value)
    return None
