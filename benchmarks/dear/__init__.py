"""A model with expensive tokens: first audio and audio per second of a pipeline of stages, beside transformers."""

from __future__ import annotations

from pathlib import Path

from benchmarks.report import Options, Report, Row


def measure(options: Options) -> Report:
    """First audio, jobs, audio a second and processor time by stage, by requests at once."""
    # Imported here: the reference's process imports this package's neighbours only.
    from benchmarks.dear.measure import measure as run

    return run(options)


def draw(result: Row, path: Path) -> None:
    """Audio a second of each side."""
    from benchmarks.charts import grouped_bars
    from benchmarks.dear.measure import HEARD

    panels: dict[str, dict[str, float]] = {}
    for row in result["tables"][HEARD]:
        panels.setdefault(f"{row['at_once']} at once", {})[row["side"]] = float(row["audio_s_per_s"])
    grouped_bars(path, panels, title="Audio a second", unit="s/s", highlight=["Stream"])
