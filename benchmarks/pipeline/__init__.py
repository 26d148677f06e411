"""Compares a tiny Qwen2.5-Omni as three processes, Full and Stream, with transformers: same checkpoint and prompts."""

from __future__ import annotations

from pathlib import Path

from benchmarks.harness.report import Options, Report, Row


def measure(options: Options) -> Report:
    """Returns job completion time, time to first audio, and where a request's time goes."""
    # Imported here, because the process of reference.py imports this package too.
    from benchmarks.pipeline.measure import measure as run

    return run(options)


def draw(result: Row, path: Path) -> None:
    """Draw the median job time and first audio of each side, by number of concurrent requests."""
    from benchmarks.harness.charts import grouped_bars
    from benchmarks.pipeline.measure import JOBS, REFERENCE

    rows = result["tables"][JOBS]
    panels = {
        f"{what}, {count} at once": {row["side"]: float(row[key]) for row in rows if row["at_once"] == count}
        for what, key in (("job", "job_ms_p50"), ("first audio", "first_audio_ms_p50"))
        for count in dict.fromkeys(row["at_once"] for row in rows)
    }
    ours = [row["side"] for row in rows if row["side"] != REFERENCE]
    grouped_bars(path, panels, title="Three processes against transformers, median", unit="ms", highlight=ours)
