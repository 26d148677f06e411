"""Draws a small chart of figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

OURS, OTHER = "#1f6f8b", "#b9c4c9"


def grouped_bars(
    path: Path,
    panels: Mapping[str, Mapping[str, float]],
    *,
    title: str,
    unit: str,
    highlight: Sequence[str] = (),
) -> None:
    """Draw a panel of horizontal bars for each entry of `panels` (panel -> bar -> value). `highlight`: bars in OURS."""
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
    figure.suptitle(title, fontsize=10)
    figure.tight_layout()
    figure.savefig(path, dpi=100, bbox_inches="tight")
    pyplot.close(figure)
