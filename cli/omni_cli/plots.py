"""Draws the timeline of a request, one lane for each stage, and the waits of a run of `omnipipe bench`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from omni_cli.timeline import RequestTimeline, Span, StagePhase

# The palette of Okabe and Ito, whose colours people with colour blindness can distinguish.
COLOURS = {
    StagePhase.INPUT: "#bbbbbb",
    StagePhase.QUEUE: "#e69f00",
    StagePhase.PREFILL: "#0072b2",
    StagePhase.GENERATE: "#56b4e9",
    StagePhase.FINISH: "#dddddd",
    StagePhase.TRANSFER: "#009e73",
}
AUDIO_COLOUR = "#d55e00"
MIN_WIDTH = 0.002
"""Minimum width of a span, as a share of the axis, so that short spans can be seen."""
WORK_BOTTOM, WORK_HEIGHT = -0.18, 0.5
TRANSFER_BOTTOM, TRANSFER_HEIGHT = -0.36, 0.12


def draw_timeline(timeline: RequestTimeline, path: Path, title: str = "") -> None:
    """Write the timeline as an image. The suffix of the path selects the format."""
    unit, factor = ("s", 1.0) if timeline.end >= 1 else ("ms", 1000.0)
    end = max(timeline.end, 1e-6) * factor
    figure = Figure(figsize=(10, 1.6 + 0.8 * len(timeline.lanes)), layout="constrained")
    axes = figure.add_subplot()

    def draw(span: Span, row: int, bottom: float, height: float) -> None:
        width = max((span.end - span.start) * factor, end * MIN_WIDTH)
        axes.broken_barh([(span.start * factor, width)], (row + bottom, height), facecolors=COLOURS[span.phase])

    seen: set[StagePhase] = set()
    for row, lane in enumerate(reversed(timeline.lanes)):
        for span in lane.work:
            draw(span, row, WORK_BOTTOM, WORK_HEIGHT)
        if lane.transfer:
            draw(lane.transfer, row, TRANSFER_BOTTOM, TRANSFER_HEIGHT)
        seen |= {span.phase for span in (*lane.work, *([lane.transfer] if lane.transfer else []))}
        if lane.steps:
            low, high = row + WORK_BOTTOM + 0.08, row + WORK_BOTTOM + WORK_HEIGHT - 0.08
            axes.vlines([step * factor for step in lane.steps], low, high, colors="black", linewidth=0.6)
        if lane.first_audio is not None:
            axes.plot(lane.first_audio * factor, row + WORK_BOTTOM + WORK_HEIGHT + 0.07, "v", color=AUDIO_COLOUR)
    handles: list[Patch | Line2D] = [
        Patch(color=COLOURS[phase], label=phase.value) for phase in StagePhase if phase in seen
    ]
    if any(lane.steps for lane in timeline.lanes):
        handles.append(Line2D([], [], color="black", marker="|", linestyle="", label="engine output"))
    if any(lane.first_audio is not None for lane in timeline.lanes):
        handles.append(Line2D([], [], color=AUDIO_COLOUR, marker="v", linestyle="", label="first audio"))
    axes.legend(
        handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.25), ncols=len(handles) or 1, frameon=False
    )
    axes.set_yticks(range(len(timeline.lanes)), [lane.stage for lane in reversed(timeline.lanes)])
    axes.set_ylim(-0.6, len(timeline.lanes) - 0.3)
    axes.set_xlim(0, end * 1.02)
    axes.set_xlabel(f"time since the request was accepted ({unit})")
    axes.set_title(title)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    figure.savefig(path, dpi=120)


def draw_waits(waits: Mapping[str, Sequence[tuple[float, float]]], failed: Sequence[float], path: Path) -> None:
    """Write a picture of a run: what each request waited for over time, and the share that waited no longer than this.

    waits: by what was waited for, (when a request was due, its wait) in seconds. failed: when requests that failed were
    due. The suffix of the path selects the format. Raises OSError.
    """
    figure = Figure(figsize=(10, 4), layout="constrained")
    times, shares = figure.subplots(1, 2)
    for name, points in waits.items():
        times.plot([start for start, _ in points], [wait for _, wait in points], ".", label=name)
        ordered = sorted(wait for _, wait in points)
        shares.step(
            ordered, [100 * (index + 1) / len(ordered) for index in range(len(ordered))], where="post", label=name
        )
    if failed:
        times.plot(failed, [0.0] * len(failed), "x", color="black", label="failed")
    times.set(xlabel="request was due, s", ylabel="waited, s", ylim=(0, None))
    shares.set(xlabel="waited, s", ylabel="requests that waited no longer, %", xlim=(0, None), ylim=(0, 100))
    for axes in (times, shares):
        axes.grid(alpha=0.3)
        if axes.get_legend_handles_labels()[0]:
            axes.legend()
    figure.savefig(path)
