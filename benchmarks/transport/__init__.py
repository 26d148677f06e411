"""Compares ways to send tensors between processes over loopback: our stream with its codec, raw TCP, and others."""

from __future__ import annotations

from pathlib import Path

from benchmarks.harness.report import Options, Report, Row


def measure(options: Options) -> Report:
    """Returns GB/s, CPU seconds per GB and round-trip times of every side."""
    # Imported here, because every peer process imports this package and needs only one side.
    from benchmarks.transport.measure import measure as run

    return run(options)


def draw(result: Row, path: Path) -> None:
    """Draw the ratios to raw TCP by size."""
    from benchmarks.harness.charts import grouped_bars
    from benchmarks.transport.measure import FLOORS, STREAMED
    from benchmarks.transport.peer import OMNI

    rows = result["tables"][STREAMED]
    panels = {
        size: {row["side"]: row["ratio_to_tcp"] for row in rows if row["size"] == size}
        for size in dict.fromkeys(row["size"] for row in rows)
    }
    grouped_bars(
        path,
        panels,
        title="Tensors between two processes over loopback, checksums on",
        unit="x raw TCP",
        highlight=[OMNI],
        floors=FLOORS,
    )
