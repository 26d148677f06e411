"""Compares first audio of a tiny Qwen3-Omni, which decodes audio frame by frame: Stream, Full and transformers."""

from __future__ import annotations

from benchmarks.first_audio.families import QWEN3
from benchmarks.first_audio.measure import HEARD, NOTES, find_ratios, hear
from benchmarks.harness.report import Options, Report

__all__ = ["measure"]


def measure(options: Options) -> Report:
    """Returns first audio, gaps, clicks and audio per second, by concurrent requests and length."""
    heard = hear(QWEN3, options.rounds)
    return Report({HEARD: heard}, find_ratios(heard, QWEN3), [*QWEN3.notes, *NOTES])
