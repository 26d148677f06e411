"""Compares first audio and playback of a tiny Qwen2.5-Omni with Stream edges, with Full edges and in transformers."""

from __future__ import annotations

from pathlib import Path

from benchmarks.harness.report import Options, Report, Row


def measure(options: Options) -> Report:
    """Returns first audio, gaps, clicks and audio per second by concurrent requests and length, and how much audio
    decoded in windows differs from audio decoded in one forward."""
    # Imported here, so that importing another module of the package stays cheap.
    from benchmarks.first_audio.measure import measure as run

    return run(options)


def draw(result: Row, path: Path) -> None:
    """Draw the median first audio of each side."""
    from benchmarks.first_audio.measure import HEARD
    from benchmarks.harness.charts import grouped_bars

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
