"""The HTTP gateway: text beside vLLM's own OpenAI server, and first audio beside gRPC."""

from __future__ import annotations

from pathlib import Path

from benchmarks.report import Options, Report, Row


def measure(options: Options) -> Report:
    """Tokens a second, first token, processor time a token; what the gateway adds to first audio."""
    # Imported here: every process of the case imports this package.
    from benchmarks.gateway.measure import measure as run

    return run(options)


def draw(result: Row, path: Path) -> None:
    """Processor time of each process for a token, at 64 at once."""
    from benchmarks.charts import stacked_bars
    from benchmarks.gateway.measure import CPU

    rows = [row for row in result["tables"][CPU] if row["process"] != "servers together"]
    parts = {
        side: {row["process"]: row["us_64_at_once"] for row in rows if row["side"] == side}
        for side in dict.fromkeys(row["side"] for row in rows)
    }
    stacked_bars(path, parts, title="Processor time for a token, tiny text model, 64 at once", unit="us")
