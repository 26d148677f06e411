"""The timeline computed from StageTimings, its picture, and its trace file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from omni_cli.timeline import Lane, RequestTimeline, Span, StagePhase, compute_timeline, render_trace
from omni_proto.client import StageTimings

S = 1_000_000_000
ORIGIN = 1_700_000_000 * S


def spans(lane: Lane) -> list[tuple[str, float, float]]:
    return [(span.phase.value, round(span.start, 6), round(span.end, 6)) for span in lane.work]


FULL = StageTimings(
    accepted_unix_ns=ORIGIN,
    input_complete_ns=S,
    engine_submitted_ns=2 * S,
    engine_scheduled_ns=3 * S,
    first_output_ns=5 * S,
    last_output_ns=9 * S,
    transfer_start_ns=9 * S,
    transfer_end_ns=10 * S,
    finished_ns=11 * S,
    step_ns=(5 * S, 7 * S, 9 * S),
)

CASES = {
    "every event": (FULL, [("input", 0, 2), ("queue", 2, 3), ("prefill", 3, 5), ("generate", 5, 9), ("finish", 9, 11)]),
    "scheduling unknown": (
        StageTimings(accepted_unix_ns=ORIGIN, engine_submitted_ns=S, first_output_ns=2 * S, finished_ns=3 * S),
        [("input", 0, 1), ("prefill", 1, 2), ("finish", 2, 3)],
    ),
    "a single output": (
        StageTimings(
            accepted_unix_ns=ORIGIN,
            engine_submitted_ns=S,
            first_output_ns=2 * S,
            last_output_ns=2 * S,
            finished_ns=2 * S,
        ),
        [("input", 0, 1), ("generate", 1, 2)],
    ),
    "input went on while the engine ran": (
        StageTimings(accepted_unix_ns=ORIGIN, input_complete_ns=8 * S, engine_submitted_ns=S, last_output_ns=9 * S),
        [("input", 0, 1), ("generate", 1, 9)],
    ),
    "nothing to do": (
        StageTimings(accepted_unix_ns=ORIGIN, input_complete_ns=S, finished_ns=2 * S),
        [("input", 0, 1), ("finish", 1, 2)],
    ),
    "nothing known": (StageTimings(accepted_unix_ns=ORIGIN), []),
}


@pytest.mark.parametrize("case", CASES, ids=lambda name: name.replace(" ", "-"))
def test_phases_follow_one_another(case: str) -> None:
    timings, expected = CASES[case]
    (lane,) = compute_timeline({"thinker": timings}).lanes
    assert spans(lane) == expected


def test_lanes_are_aligned_by_the_wall_clock_of_accepted() -> None:
    late = StageTimings(accepted_unix_ns=ORIGIN + 4 * S, engine_submitted_ns=S, finished_ns=2 * S, first_audio_ns=S)
    timeline = compute_timeline({"thinker": FULL, "talker": late})
    assert [lane.stage for lane in timeline.lanes] == ["thinker", "talker"]
    assert spans(timeline.lanes[1]) == [("input", 4, 5), ("finish", 5, 6)]
    assert timeline.lanes[1].first_audio == 5
    assert timeline.end == 11


def test_a_later_stage_may_accept_first() -> None:
    # The stages' wall clocks may differ, so a downstream stage can appear to accept a request before its upstream
    # stage. The axis begins at the earliest of these times.
    early = StageTimings(accepted_unix_ns=ORIGIN - S, finished_ns=S)
    timeline = compute_timeline({"thinker": FULL, "talker": early})
    assert spans(timeline.lanes[0])[0] == ("input", 1, 3)
    assert spans(timeline.lanes[1]) == [("finish", 0, 1)]


def test_transfer_and_steps() -> None:
    (lane,) = compute_timeline({"thinker": FULL}).lanes
    assert lane.transfer == Span(StagePhase.TRANSFER, 9, 10)
    assert lane.steps == (5, 7, 9)
    assert lane.first_audio is None


def test_a_timeline_without_stages_is_empty() -> None:
    assert compute_timeline({}) == RequestTimeline()
    assert RequestTimeline().end == 0


@pytest.mark.parametrize("timings", [{}, {"thinker": FULL}, {"thinker": FULL, "nothing": StageTimings()}])
def test_picture_is_written(timings: dict[str, StageTimings], tmp_path: Path) -> None:
    from omni_cli.plots import draw_timeline

    draw_timeline(compute_timeline(timings), tmp_path / "lanes.png", title="a request")
    assert (tmp_path / "lanes.png").read_bytes().startswith(b"\x89PNG")


def test_a_trace_file_holds_every_stage_on_one_clock() -> None:
    late = StageTimings(accepted_unix_ns=ORIGIN + S, engine_submitted_ns=S, last_output_ns=2 * S, first_audio_ns=2 * S)
    document = json.loads(render_trace(compute_timeline({"thinker": FULL, "token2wav": late}), request_id="r1"))
    assert document["otherData"] == {"request_id": "r1"}
    events = document["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {1: "thinker", 2: "token2wav"}
    complete = [(names[e["pid"]], e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
    assert complete[:2] == [("thinker", "input", 0, 2e6), ("thinker", "queue", 2e6, 1e6)]
    assert ("thinker", "transfer", 9e6, 1e6) in complete
    assert ("token2wav", "generate", 2e6, 1e6) in complete
    assert [e["ts"] for e in events if e["name"] == "step"] == [5e6, 7e6, 9e6]
    assert [e["ts"] for e in events if e["name"] == "first audio"] == [3e6]
    threads = {(e["pid"], e["tid"]) for e in events if e["ph"] in "Xi"}
    assert threads == {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
