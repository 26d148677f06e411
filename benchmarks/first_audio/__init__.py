"""First audio of a tiny Qwen2.5-Omni: Stream against Full and transformers, and what listeners hear of it."""

from __future__ import annotations

from pathlib import Path

from benchmarks.report import Options, Report, Row


def measure(options: Options) -> Report:
    """First audio, gaps, clicks and audio a second, by requests at once and length; and the error of windows."""
    # Imported here: the reference's process imports this package too.
    from benchmarks.first_audio.measure import measure as run

    return run(options)


def draw(result: Row, path: Path) -> None:
    """First audio of each side."""
    from benchmarks.charts import grouped_bars
    from benchmarks.first_audio.measure import HEARD

    rows = result["tables"][HEARD]
    panels = {
        f"{row['at_once']} at once, {row['audio_s']} s": {
            other["side"]: float(other["first_audio_s_p50"])
            for other in rows
            if (other["at_once"], other["audio_s"]) == (row["at_once"], row["audio_s"])
        }
        for row in rows
    }
    grouped_bars(path, panels, title="First audio, median", unit="s", highlight=["Stream"])
