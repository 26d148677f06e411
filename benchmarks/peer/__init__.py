"""Compares vllm-omni with our pipeline, in turn: the same tiny Qwen2.5-Omni on the same machine."""

from __future__ import annotations

from pathlib import Path

from benchmarks.harness.report import Options, Report, Row


def measure(options: Options) -> Report:
    """Returns makespan, job time, first audio, processor time, start, and how many answers transformers gives too."""
    # Imported here, because the processes of checkpoint.py and reference.py import this package too.
    from benchmarks.peer.measure import measure as run

    return run(options)


def draw(result: Row, path: Path) -> None:
    """Draw makespan, first audio and processor time of each side, for the most concurrent requests measured."""
    from benchmarks.harness.charts import grouped_bars
    from benchmarks.peer.figures import JOBS, OURS

    rows = result["tables"][JOBS]
    most = max(row["at_once"] for row in rows)
    panels = {
        f"{what}, {most} at once": {row["side"]: float(row[key] or 0) for row in rows if row["at_once"] == most}
        for what, key in (
            ("all done, s", "makespan_s"),
            ("first audio, s", "first_audio_s_p50"),
            ("processor time a job, s", "cpu_s_per_job"),
        )
    }
    grouped_bars(path, panels, title="vllm-omni beside our pipeline", unit="s", highlight=[OURS])
