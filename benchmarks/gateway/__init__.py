"""Compares the HTTP gateway with vLLM's own OpenAI server for text, and with gRPC for first audio."""

from __future__ import annotations

from pathlib import Path

from benchmarks.harness.report import Options, Report, Row


def measure(options: Options) -> Report:
    """Returns tokens per second, first token, processor time per token, and what the gateway adds to first audio."""
    # Imported here, because every process of the case imports this package, and most need only one module of it.
    from benchmarks.gateway.measure import measure as run

    return run(options)


def draw(result: Row, path: Path) -> None:
    """Draw each process's processor time per token, with 64 concurrent requests."""
    from benchmarks.gateway.measure import CPU
    from benchmarks.harness.charts import stacked_bars

    rows = [row for row in result["tables"][CPU] if row["process"] != "servers together"]
    parts = {
        side: {row["process"]: row["us_64_at_once"] for row in rows if row["side"] == side}
        for side in dict.fromkeys(row["side"] for row in rows)
    }
    stacked_bars(path, parts, title="Processor time for a token, tiny text model, 64 at once", unit="us")
