"""Measures the stage server's processor time per token, for text alone and for text with a row for the next stage."""

from __future__ import annotations

from pathlib import Path

from benchmarks.harness.report import Options, Report, Row


def measure(options: Options) -> Report:
    """Returns processor time per token, and how late texts and rows arrive."""
    # Imported here, because every process of the case imports this package.
    from benchmarks.tokens.measure import measure as run

    return run(options)


def draw(result: Row, path: Path) -> None:
    """Draw processor time per token."""
    from benchmarks.harness.charts import grouped_bars
    from benchmarks.tokens.measure import PACED, TEXT, TEXT_AND_ROWS

    rows = result["tables"][PACED]
    panels = {
        f"{count} at once": {row["side"]: row["cpu_us"] for row in rows if row["at_once"] == count}
        for count in dict.fromkeys(row["at_once"] for row in rows)
    }
    grouped_bars(
        path,
        panels,
        title="Processor time of the sending server for each token, 100 a second a request",
        unit="us",
        highlight=[TEXT, TEXT_AND_ROWS],
    )
