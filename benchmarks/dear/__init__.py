"""Compares a pipeline with transformers for a model with expensive tokens: first audio, and audio per second."""

from __future__ import annotations

from pathlib import Path

from benchmarks.harness.report import Options, Report, Row


def measure(options: Options) -> Report:
    """Returns first audio, job time, audio per second and each stage's processor time, by concurrent requests."""
    # Imported here, because the process that writes the checkpoint imports this package but needs only checkpoint.py.
    from benchmarks.dear.measure import measure as run

    return run(options)


def draw(result: Row, path: Path) -> None:
    """Draw the audio seconds per second of each side."""
    from benchmarks.dear.measure import HEARD
    from benchmarks.harness.charts import grouped_bars

    panels: dict[str, dict[str, float]] = {}
    for row in result["tables"][HEARD]:
        panels.setdefault(f"{row['at_once']} at once", {})[row["side"]] = float(row["audio_s_per_s"])
    grouped_bars(path, panels, title="Audio a second", unit="s/s", highlight=["Stream"])
