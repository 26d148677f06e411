"""`make bench`: ratios, each measured in one run with the sides taking turns; printed, and written to results/.

This machine and that one differ; a ratio of two sides that took turns on one machine says something on both. Every case
writes results/CASE.json, draws results/CASE.png from it and puts the tables into docs/performance.md.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.page import render_result, replace_section
from benchmarks.report import Options, Report, describe_machine, load, print_report

CASES = ("codec", "transport", "schedulers", "startup", "pipeline")
RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[1] / "docs" / "performance.md"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", default=list(CASES), metavar="case", help=f"of {', '.join(CASES)}")
    parser.add_argument("--rounds", type=int, help="how often each side runs; each case has a number of its own")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the files go")
    parser.add_argument("--draw", action="store_true", help="measure nothing: pictures and page anew")
    options = parser.parse_args()
    unknown = set(options.cases) - set(CASES)
    if unknown:
        parser.error(f"no such case: {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    options.results.mkdir(parents=True, exist_ok=True)
    for name in options.cases:
        if not options.draw:
            run_case(name, Options(options.rounds, options.results))
        draw_case(name, options.results)
        if options.results == RESULTS:
            write_page(name)
    return 0


def run_case(name: str, options: Options) -> None:
    """Measure a case, print it, write it down."""
    record(name, lambda: importlib.import_module(f"benchmarks.{name}").measure(options), options.results)


def record(name: str, measure: Callable[[], Report], results: Path) -> Report:
    """What `measure` gives: printed, and written to NAME.json in a folder with when, on what and for how long."""
    machine, began = describe_machine(), time.monotonic()
    report = measure()
    result = {
        "case": name,
        "date": datetime.now(UTC).date().isoformat(),
        "machine": {**machine, "load_after": load()},
        "seconds": round(time.monotonic() - began),
        "floors": [floor.to_row() for floor in report.floors],
        "notes": report.notes,
        "tables": report.tables,
    }
    print_report(name, report)
    (results / f"{name}.json").write_text(json.dumps(result, indent=2) + "\n")
    return report


def draw_case(name: str, results: Path) -> None:
    """Draw a case's picture from its file, if there is one."""
    file = results / f"{name}.json"
    if file.exists():
        result = json.loads(file.read_text())
        importlib.import_module(f"benchmarks.{name}").draw(result, file.with_suffix(".png"))


def write_page(name: str) -> None:
    """Put a case's figures into docs/performance.md."""
    result = json.loads((RESULTS / f"{name}.json").read_text())
    PAGE.write_text(replace_section(PAGE.read_text(), name, render_result(result)))


if __name__ == "__main__":
    sys.exit(main())
