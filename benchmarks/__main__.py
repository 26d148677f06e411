"""`make bench`: measures ratios, prints and judges them, and writes them to results/.

A case compares several systems, its sides, which take turns within a run. Absolute figures differ between machines, but
the ratio of two sides that took turns on one machine is valid for other machines too. Every case writes
results/CASE.json and puts its ratios into a page of docs/performance.

The command exits with 1 if a ratio misses a bound that is not only a goal, if a ratio is worse than in the last
committed result by more than its tolerance, or if a ratio of that result was not measured. Such a run is written to
results/CASE.rejected.json and replaces nothing.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.harness.page import find_page, render_result, replace_section
from benchmarks.harness.report import Options, Report, describe_machine, load, print_report
from benchmarks.harness.stored import RESULTS, load_committed, write_result
from benchmarks.harness.verdict import find_problems, judge, read_last

CASES = {
    **{name: f"benchmarks.{name}" for name in ("codec", "schedulers", "voice")},
    **{
        name: f"benchmarks.{name}.measure"
        for name in ("transport", "tokens", "gateway", "replicas", "scaling", "realtime")
    },
    "first-audio": "benchmarks.first_audio.measure",
    "first-audio-qwen3": "benchmarks.first_audio.qwen3",
    "first-audio-paced": "benchmarks.paced.measure",
    "first-audio-rate": "benchmarks.paced.rate",
    "turns": "benchmarks.first_audio.turns",
    "turns-paced": "benchmarks.first_audio.paced_turns",
    "peer": "benchmarks.peer.measure",
}
"""Case -> its module, which has the function `measure`."""
BY_NAME_ONLY = {"peer", "voice"}
"""Cases that run only if they are named, because they install packages the first time: `peer` 7 GB, `voice` 0.2 GB."""
PAGES = Path(__file__).parents[1] / "docs" / "performance"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all chosen cases, or only write their pages. Returns 1 if one of them failed, else 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.splitlines()[0])
    all_of_them = f"all but {', '.join(sorted(BY_NAME_ONLY))}"
    parser.add_argument("cases", nargs="*", metavar="case", help=f"of {', '.join(CASES)}; none: {all_of_them}")
    parser.add_argument("--rounds", type=int, help="how often each side runs (default: the case's own number)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for result files")
    parser.add_argument("--pages", action="store_true", help="measure nothing; write the results into the pages")
    options = parser.parse_args(arguments)
    cases = options.cases or [name for name in CASES if name not in BY_NAME_ONLY]
    unknown = set(cases) - set(CASES)
    if unknown:
        parser.error(f"no such case: {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    options.results.mkdir(parents=True, exist_ok=True)
    problems: list[str] = []
    for name in cases:
        found = [] if options.pages else run_case(name, Options(options.rounds, options.results))
        problems += [f"{name}: {problem}" for problem in found]
        if not found and options.results == RESULTS:
            write_page(name)
    for problem in problems:
        print(f"FAILED {problem}", file=sys.stderr)
    return int(bool(problems))


def run_case(name: str, options: Options) -> list[str]:
    """Measure a case, print, judge and store it. Returns the reasons why it fails, one line each."""
    return record(name, lambda: importlib.import_module(CASES[name]).measure(options), options.results)[1]


def record(name: str, measure: Callable[[], Report], results: Path) -> tuple[Report, list[str]]:
    """Measure a case, print it, and write its result, with the date, the machine and the duration, to a folder.

    Returns the report, and the reasons why the run fails, one line each. The result is compared with the case's
    committed result; if none is committed, with the earlier result in the folder.
    """
    machine, began = describe_machine(), time.monotonic()
    report = measure()
    last = read_last(load_committed(name) or load_committed(name, results))
    verdicts = judge(report.ratios, last)
    result = {
        "case": name,
        "date": datetime.now(UTC).date().isoformat(),
        "machine": {**machine, "load_after": load()},
        "seconds": round(time.monotonic() - began),
        "ratios": [verdict.to_row() for verdict in verdicts],
        "notes": report.notes,
        "tables": report.tables,
    }
    print_report(name, report, verdicts)
    problems = find_problems(verdicts, last)
    print(f"\nwritten to {write_result(name, results, result, accepted=not problems)}")
    return report, problems


def write_page(name: str) -> None:
    """Put a case's figures into its page in docs/performance. Raises ValueError unless exactly one page has it."""
    result = json.loads((RESULTS / f"{name}.json").read_text())
    page = find_page(PAGES, name)
    page.write_text(replace_section(page.read_text(), name, render_result(result)))


if __name__ == "__main__":
    sys.exit(main())
