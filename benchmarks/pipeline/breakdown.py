"""Computes where a request's time went, from the timings that its stages sent. Pure."""

from __future__ import annotations

from omni_proto.client import StageTimings

PARTS = ("reach", "input", "prepare", "queue", "engine", "hand over", "finish")


def split(timings: StageTimings, caller_unix_ns: int) -> dict[str, float]:
    """Returns the milliseconds of each part of one stage's work. Each part begins where the one before it ends.

    - reach: from the client's send, or from the upstream stage's first row, to Accepted
    - input: until the whole input has arrived; over a Full edge that includes the upstream engine's work
    - prepare: until the engine has the request
    - queue: until the engine's scheduler has taken it
    - engine: until the engine's last output
    - hand over: until the rows that were left after the last output are serialized and sent
    - finish: until the stage has reported that it is done
    """
    scheduled = timings.engine_scheduled_ns or timings.engine_submitted_ns
    sent = max(timings.transfer_end_ns, timings.last_output_ns)
    return {
        "reach": max(0, timings.accepted_unix_ns - caller_unix_ns) / 1e6,
        "input": timings.input_complete_ns / 1e6,
        "prepare": max(0, timings.engine_submitted_ns - timings.input_complete_ns) / 1e6,
        "queue": max(0, scheduled - timings.engine_submitted_ns) / 1e6,
        "engine": max(0, timings.last_output_ns - max(scheduled, 0)) / 1e6,
        "hand over": (sent - timings.last_output_ns) / 1e6,
        "finish": max(0, timings.finished_ns - sent) / 1e6,
    }
