"""Measures token2wav (a diffusion engine) and the talker (autoregressive) with 1, 4 and 16 concurrent requests."""

from __future__ import annotations

from pathlib import Path

from benchmarks.harness.report import Options, Report, Row


def measure(options: Options) -> Report:
    """Returns requests and codes per second, latency, and peak memory of the engine's process."""
    # Imported here, so that `draw` and figures.py need no torch.
    from benchmarks.diffusion.measure import measure as run

    return run(options)


def draw(result: Row, path: Path) -> None:
    """Draw codes per second of both engines."""
    from benchmarks.diffusion.figures import TABLE
    from benchmarks.harness.charts import grouped_bars

    rows = result["tables"][TABLE]
    sides = dict.fromkeys(row["side"] for row in rows)
    panels = {
        side: {f"{row['at_once']} at once": float(row["codes_per_s"]) for row in rows if row["side"] == side}
        for side in sides
    }
    ours = list(dict.fromkeys(bar for bars in panels.values() for bar in bars))
    grouped_bars(path, panels, title="Codes a second, tiny checkpoint on the CPU", unit="codes/s", highlight=ours)
