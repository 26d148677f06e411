"""Draws a dashboard for the docs without Grafana, but in Grafana's layout, from its JSON file and Prometheus'
answers."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl

mpl.use("Agg")
from matplotlib.axes import Axes
from matplotlib.dates import DateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

PAGE, PANEL, GRID, TEXT, FAINT = "#111217", "#181b1f", "#2c3235", "#d8d9da", "#8e8e8e"
COLORS: Final = ("#7eb26d", "#eab839", "#6ed0e0", "#ef843c", "#e24d42", "#1f78c1", "#ba43a9", "#705da0")
"""Colours of lines: Grafana's palette, in Grafana's order."""
COLUMN_INCHES, LINE_INCHES = 0.62, 0.36
LEGEND_ENTRIES: Final = 6


@dataclass(frozen=True)
class Line:
    """One series of a range query."""

    labels: Mapping[str, str]
    times: Sequence[float]
    """Seconds since the epoch."""
    values: Sequence[float]


Ask = Callable[[str], Sequence[Line]]
"""Answers a range query that still contains Grafana's variables."""


def draw_dashboard(document: Mapping[str, Any], ask: Ask, out: Path, *, lines: int | None = None) -> None:
    """Write the dashboard as a PNG.

    Args:
        document: the dashboard's JSON.
        ask: answers a panel's query.
        out: the PNG.
        lines: number of Grafana's grid lines to draw; default all. Panels that begin below them are left out.
    """
    panels = [panel for panel in document["panels"] if lines is None or panel["gridPos"]["y"] < lines]
    height = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels)
    figure = Figure(figsize=(24 * COLUMN_INCHES, (height + 1) * LINE_INCHES), facecolor=PAGE)
    figure.text(0.008, 1 - 0.6 / (height + 1), document["title"], color=TEXT, fontsize=13, va="center")
    for panel in panels:
        place = panel["gridPos"]
        left, width = place["x"] / 24, place["w"] / 24
        bottom = 1 - (place["y"] + place["h"] + 1) / (height + 1)
        if panel["type"] == "row":
            figure.text(left + 0.008, bottom + 0.5 / (height + 1), f"▾ {panel['title']}", color=TEXT, va="center")
            continue
        box = (left + 0.004, bottom + 0.15 / (height + 1), width - 0.008, (place["h"] - 0.3) / (height + 1))
        figure.add_axes(box, facecolor=PANEL, xticks=[], yticks=[]).spines[:].set_color(GRID)
        title_y = bottom + (place["h"] - 0.75) / (height + 1)
        figure.text(left + 0.01, title_y, panel["title"], color=TEXT, fontsize=9, va="center")
        inner = (left + 0.036, bottom + 1.9 / (height + 1), width - 0.048, (place["h"] - 3.3) / (height + 1))
        _draw_panel(figure, inner, panel, ask)
    figure.savefig(out, dpi=80, facecolor=PAGE)


def _draw_panel(figure: Figure, box: tuple[float, float, float, float], panel: Mapping[str, Any], ask: Ask) -> None:
    answers = [(target, line) for target in panel["targets"] for line in ask(target["expr"])]
    defaults = panel["fieldConfig"]["defaults"]
    if panel["type"] == "timeseries":
        _draw_lines(figure.add_axes(box, facecolor=PANEL), answers, defaults)
        return
    axes = figure.add_axes(box, facecolor=PANEL)
    axes.axis("off")
    if panel["type"] == "stat":
        for index, (target, line) in enumerate(answers):
            x = (index + 0.5) / len(answers)
            axes.text(
                x, 0.55, format_value(line.values[-1], defaults["unit"]), color=COLORS[0], fontsize=22, ha="center"
            )
            axes.text(x, 0.15, name_line(target["legendFormat"], line.labels), color=FAINT, fontsize=8, ha="center")
        return
    columns = [
        name
        for name in ("pipeline", "stage", "pod", "component", "version")
        if answers and name in answers[0][1].labels
    ]
    rows = [[line.labels[name] for name in columns] + [format_value(line.values[-1], "short")] for _, line in answers]
    if rows:
        table = axes.table(rows, colLabels=[*columns, "Value"], loc="upper center", cellLoc="left", edges="horizontal")
        table.auto_set_font_size(False)
        for cell in table.get_celld().values():
            cell.set_edgecolor(GRID)
            cell.get_text().set(color=TEXT, fontsize=7.5)


def _draw_lines(axes: Axes, answers: Sequence[tuple[Mapping[str, Any], Line]], defaults: Mapping[str, Any]) -> None:
    custom = defaults["custom"]
    base: dict[float, float] = {}
    named = _largest(answers)
    for index, (target, line) in enumerate(answers):
        stacked = custom["stacking"]["mode"] == "normal"
        below = [base.get(at, 0.0) if stacked else 0.0 for at in line.times]
        values = [
            low + (0.0 if math.isnan(value) and stacked else value)
            for low, value in zip(below, line.values, strict=True)
        ]
        base.update(zip(line.times, values, strict=True))
        moments = [datetime.fromtimestamp(at, UTC) for at in line.times]
        color = COLORS[index % len(COLORS)]
        label = name_line(target["legendFormat"], line.labels) if index in named else None
        axes.plot(moments, values, color=color, linewidth=1.2, label=label)
        axes.fill_between(moments, below, values, color=color, alpha=custom["fillOpacity"] / 100, linewidth=0)
    axes.set_ylim(bottom=0)
    if answers and axes.get_ylim()[1] < 1e-9:
        axes.set_ylim(top=1)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: format_value(value, defaults["unit"])))
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.xaxis.set_major_formatter(DateFormatter("%H:%M:%S"))
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.tick_params(colors=FAINT, labelsize=7, length=0)
    axes.grid(color=GRID, linewidth=0.6)
    axes.spines[:].set_visible(False)
    if answers:
        axes.legend(
            loc="upper left",
            bbox_to_anchor=(-0.08, -0.14),
            ncols=2,
            fontsize=6.5,
            frameon=False,
            labelcolor=TEXT,
            handlelength=1,
            columnspacing=1,
            labelspacing=0.2,
        )
    else:
        axes.text(0.5, 0.5, "No data", color=FAINT, transform=axes.transAxes, ha="center")


def _largest(answers: Sequence[tuple[Mapping[str, Any], Line]]) -> set[int]:
    """Returns the indexes of the lines that the legend shows: the LEGEND_ENTRIES lines with the largest values."""
    peaks = [max((value for value in line.values if not math.isnan(value)), default=0.0) for _, line in answers]
    return set(sorted(range(len(peaks)), key=lambda index: -peaks[index])[:LEGEND_ENTRIES])


def name_line(legend: str, labels: Mapping[str, str]) -> str:
    """Returns a line's name: Grafana's legend with each {{label}} filled in, or for __auto all labels, joined."""
    if legend == "__auto":
        return ", ".join(value for name, value in labels.items() if name != "__name__")
    return re.sub(r"\{\{(\w+)\}\}", lambda found: labels.get(found[1], ""), legend).strip()


def format_value(value: float, unit: str) -> str:
    """Returns a value as text, in one of Grafana's units: s, percentunit, bytes, Bps, reqps, short."""
    if math.isnan(value):
        return "-"
    if unit == "s":
        return f"{value * 1e3:.3g} ms" if abs(value) < 1 else f"{value:.3g} s"
    if unit == "percentunit":
        return f"{value * 100:.3g}%"
    if unit in ("bytes", "Bps"):
        for name in ("B", "KiB", "MiB", "GiB", "TiB"):
            if abs(value) < 1024 or name == "TiB":
                return f"{value:.3g} {name}" + ("/s" if unit == "Bps" else "")
            value /= 1024
    return f"{value:.3g}" + (" req/s" if unit == "reqps" else "")
