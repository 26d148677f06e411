"""Prints the coverage of each package in FLOORS, and exits with 1 if a package is below its floor.

python tools/check_coverage.py FOLDER     # the folder contains the data files of several runs: .coverage.*
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

FLOORS = {  # folder -> smallest coverage, in percent
    "proto/omni_proto": 85.0,
    "proto/omni_proto/pipeline": 90.0,
    "kube/omni_kube": 90.0,
    "operator/omni_operator": 90.0,
    "gateway/omni_gateway": 85.0,
    "stage_server/omni_stage/fetch": 90.0,
    "stage_server/omni_stage/payloads": 85.0,
    "stage_server/omni_stage/vllm_adapter": 85.0,
    "stage_server/omni_stage/service": 85.0,
    "stage_server/omni_stage/engine": 85.0,
    "stage_server/omni_stage/models": 85.0,
    "cli/omni_cli": 80.0,
}


def package_percent(files: dict[str, dict[str, dict[str, int]]], prefix: str) -> float:
    """Returns the share of covered lines and branches in the files under prefix, in percent; 0 if there are none."""
    summaries = [entry["summary"] for name, entry in files.items() if name.startswith(prefix + "/")]
    covered = sum(s["covered_lines"] + s.get("covered_branches", 0) for s in summaries)
    total = sum(s["num_statements"] + s.get("num_branches", 0) for s in summaries)
    return 100.0 * covered / total if total else 0.0


def main() -> int:
    """Combine the data files and print the coverage. Returns 1 if a package is below its floor, else 0."""
    coverage = [sys.executable, "-m", "coverage"]
    subprocess.run([*coverage, "combine", "--keep", "--quiet", *sys.argv[1:]], check=True)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "coverage.json"
        subprocess.run([*coverage, "json", "--quiet", "-o", str(report)], check=True)
        files = json.loads(report.read_text())["files"]
    failed = False
    for prefix, floor in FLOORS.items():
        percent = package_percent(files, prefix)
        verdict = "ok" if percent >= floor else "TOO LOW"
        failed |= percent < floor
        sys.stdout.write(f"coverage {prefix:45} {percent:5.1f} %  (floor {floor:.0f} %)  {verdict}\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
