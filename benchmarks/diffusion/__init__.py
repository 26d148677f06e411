"""token2wav (a diffusion engine) at 1, 4 and 16 requests at once, beside the talker (an autoregressive one)."""

from __future__ import annotations

from pathlib import Path

from benchmarks.report import Options, Report, Row


def measure(options: Options) -> Report:
    """Returns requests and codes a second, latency, and peak memory of the engine's process."""
    # Imported here: the engine's process imports this package too.
    from benchmarks.diffusion.measure import measure as run

    return run(options)


def draw(result: Row, path: Path) -> None:
    """Codes a second of both engines."""
    from benchmarks.charts import grouped_bars
    from benchmarks.diffusion.figures import TABLE

    rows = result["tables"][TABLE]
    sides = dict.fromkeys(row["side"] for row in rows)
    panels = {
        side: {f"{row['at_once']} at once": float(row["codes_per_s"]) for row in rows if row["side"] == side}
        for side in sides
    }
    ours = list(dict.fromkeys(bar for bars in panels.values() for bar in bars))
    grouped_bars(path, panels, title="Codes a second, tiny checkpoint on the CPU", unit="codes/s", highlight=ours)
