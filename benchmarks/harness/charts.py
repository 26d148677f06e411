"""Draws small charts of the figures in a result file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

OURS, OTHER, MARK = "#1f6f8b", "#b9c4c9", "#c0392b"


def grouped_bars(
    path: Path,
    panels: Mapping[str, Mapping[str, float]],
    *,
    title: str,
    unit: str,
    highlight: Sequence[str] = (),
    floors: Mapping[str, float] | None = None,
    note: str = "",
) -> None:
    """Draw a panel of horizontal bars for each entry of `panels` (panel -> bar -> value).

    `floors` maps a panel to a value that is marked by a dashed line. The bars named in `highlight` get the colour OURS.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    bars = max(len(values) for values in panels.values())
    figure, axes = pyplot.subplots(
        1, len(panels), figsize=(3.0 * len(panels) + 1.6, 0.34 * bars + 1.6), sharey=True, squeeze=False
    )
    for axis, (name, values) in zip(axes[0], panels.items(), strict=True):
        labels = list(values)[::-1]
        numbers = [values[label] for label in labels]
        drawn = axis.barh(labels, numbers, color=[OURS if label in highlight else OTHER for label in labels])
        axis.bar_label(drawn, labels=[f"{number:.3g}" for number in numbers], padding=2, fontsize=7)
        axis.set_title(name, fontsize=9)
        axis.set_xlabel(unit, fontsize=8)
        axis.tick_params(labelsize=8)
        axis.set_xlim(0, max(numbers) * 1.22 or 1)
        axis.spines[["top", "right"]].set_visible(False)
        if floors and name in floors:
            axis.axvline(floors[name], color=MARK, linestyle="--", linewidth=1)
    _save(figure, path, title, note)


def stacked_bars(path: Path, rows: Mapping[str, Mapping[str, float]], *, title: str, unit: str, note: str = "") -> None:
    """Draw a horizontal bar for each row, divided into the row's parts (row -> part -> value)."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(9, 0.42 * len(rows) + 1.9))
    labels = list(rows)[::-1]
    parts = list(dict.fromkeys(part for values in rows.values() for part in values))
    palette = pyplot.get_cmap("tab20")
    lefts = [0.0] * len(labels)
    for number, part in enumerate(parts):
        widths = [rows[label].get(part, 0.0) for label in labels]
        axis.barh(labels, widths, left=lefts, label=part, color=palette(number % 20))
        lefts = [left + width for left, width in zip(lefts, widths, strict=True)]
    axis.set_xlabel(unit, fontsize=8)
    axis.tick_params(labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.25), ncol=min(5, len(parts)), frameon=False)
    _save(figure, path, title, note)


def curves(path: Path, panels: Mapping[str, Mapping[str, Mapping[float, float]]], *, title: str, across: str) -> None:
    """Draw a panel with lines for each entry of `panels` (panel -> line -> x -> y), side by side. across: what x is."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(panels), figsize=(9, 3), squeeze=False)
    for axis, (name, lines) in zip(axes[0], panels.items(), strict=True):
        for label, points in lines.items():
            axis.plot(list(points), list(points.values()), marker="o", markersize=3, label=label)
        axis.set_title(name, fontsize=9)
        axis.set_xlabel(across, fontsize=8)
        axis.set_ylim(bottom=0)
        axis.tick_params(labelsize=8)
    axes[0][0].legend(fontsize=8)
    _save(figure, path, title, "")


def _save(figure: Any, path: Path, title: str, note: str) -> None:
    from matplotlib import pyplot

    figure.suptitle(title, fontsize=10)
    if note:
        figure.text(0.5, 0.0, note, ha="center", va="top", fontsize=7, color="#555555")
    figure.tight_layout()
    figure.savefig(path, dpi=100, bbox_inches="tight")
    pyplot.close(figure)
