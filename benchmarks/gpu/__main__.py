"""`make gpu`: runs the checks, prints a line for each result, and writes one file to send back (docs/gpu-check.md).

python -m benchmarks.gpu [--part torch|whole] [--model DIR | --shaped 7b|3b|30b-a3b] [--only NAME ...] [--out DIR]
python -m benchmarks.gpu --bundle FILE [--python 3.12]     writes what a machine without a network needs
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from tools.json_text import format_json

from benchmarks.gpu.catalogue import CHECKS
from benchmarks.gpu.checks import Check, Context, Result, run_check

CHECK_TIMEOUT_S = 3600.0
_CHILD_OUTPUT = 20_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chosen checks. Returns 1 if one failed, else 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=("all", "torch", "whole"), default="all")
    parser.add_argument("--model", type=Path, help="directory of the published checkpoint")
    parser.add_argument(
        "--shaped", choices=("7b", "3b", "30b-a3b"), help="use a checkpoint of that size with random weights instead"
    )
    parser.add_argument("--family", default="qwen2_5_omni", help="family whose tiny checkpoint runs without --model")
    parser.add_argument(
        "--only", nargs="*", default=[], metavar="NAME", help="run only checks whose names begin with one of these"
    )
    parser.add_argument("--out", type=Path, default=Path("gpu-check"), help="folder for results")
    parser.add_argument("--here", action="store_true", help="run all checks in this process, for a debugger or a CPU")
    parser.add_argument("--bundle", type=Path, help="write this file for a machine without a network, and run nothing")
    parser.add_argument(
        "--python", default=f"{sys.version_info[0]}.{sys.version_info[1]}", help="that machine's Python"
    )
    options = parser.parse_args(arguments)
    if options.bundle:
        from benchmarks.gpu.bundle import write_bundle

        print(write_bundle(options.bundle, options.python))
        return 0
    chosen = choose(options.part, options.only)
    if not chosen:
        parser.error(f"no check has that name; the checks are {', '.join(check.name for check in CHECKS)}")
    options.out.mkdir(parents=True, exist_ok=True)
    if options.shaped:
        from benchmarks.gpu.stages.shaped import write_shaped_checkpoint

        options.model = options.out.resolve().parent / f"shaped-{options.shaped}"
        write_shaped_checkpoint(options.model, options.shaped)
    context = make_context(options.out.resolve(), options.model, options.family)
    results = []
    for check in chosen:
        began = time.monotonic()
        run = run_check if options.here else run_apart
        for result in run(check, context):
            print(result.line(), flush=True)
            results.append({**result.to_row(), "check_seconds": round(time.monotonic() - began, 1)})
        # Written after each check, so that an interrupted run leaves the results so far.
        write_tables(context, results)
    print(f"send back {pack_results(context)}")
    return int(any(row["status"] == "FAIL" for row in results))


def choose(part: str, only: Sequence[str]) -> list[Check]:
    """Returns the checks of a part; if `only` is given, those whose names begin with one of its entries."""
    return [
        check
        for check in CHECKS
        if part in ("all", check.part) and (not only or any(check.name.startswith(name) for name in only))
    ]


def make_context(out: Path, model: Path | None, family: str) -> Context:
    """Returns the context of checks on this machine: its device, GPUs, folders and model."""
    import torch

    gpus = torch.cuda.device_count()
    device = "cuda" if gpus and torch.cuda.is_available() else "cpu"
    return Context(device=device, gpus=gpus, out=out, model=model.resolve() if model else None, family=family)


def run_apart(check: Check, context: Context) -> Iterator[Result]:
    """Yields the results of a check that runs in its own process, with a time limit.

    So a check that hangs, or that breaks the GPU's context, does not affect other checks.
    """
    file = context.out / f".{check.name}.json"
    file.unlink(missing_ok=True)
    command = [sys.executable, "-m", "benchmarks.gpu.child", check.name, str(context.out), context.family]
    command += [str(context.model)] if context.model else []
    log = context.out / "logs" / f"{check.name}.txt"
    log.parent.mkdir(exist_ok=True)
    with log.open("wb") as output:
        try:
            ended = subprocess.run(
                command, stdout=output, stderr=subprocess.STDOUT, timeout=CHECK_TIMEOUT_S, check=False, env=os.environ
            ).returncode
        except subprocess.TimeoutExpired:
            yield Result("FAIL", check.name, f"not finished after {CHECK_TIMEOUT_S:g} s", "-")
            return
    if not file.exists():
        tail = log.read_text(errors="replace")[-_CHILD_OUTPUT:]
        yield Result("FAIL", check.name, f"its process ended with {ended}", "0", log=tail)
        return
    yield from (Result(**row) for row in json.loads(file.read_text(encoding="utf-8")))
    file.unlink()


def write_tables(context: Context, results: list[dict[str, object]]) -> None:
    """Write the results so far to results.json and results.txt in the context's folder."""
    header = {"device": context.device, "gpus": context.gpus, "model": str(context.model)}
    header |= {"date": datetime.now(UTC).isoformat()}
    (context.out / "results.json").write_text(format_json({**header, "results": results}))
    lines = [" ".join(str(row[key]) for key in ("status", "name", "value", "limit")) for row in results]
    (context.out / "results.txt").write_text("\n".join(lines) + "\n")


def pack_results(context: Context) -> Path:
    """Write one archive with the tables, the logs and the audio. Returns its path."""
    archive = context.out / f"gpu-check-{datetime.now(UTC):%Y%m%d-%H%M%S}.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for path in sorted(context.out.rglob("*")):
            if path.is_file() and path.suffix in (".json", ".txt", ".log", ".wav"):
                tar.add(path, path.relative_to(context.out.parent))
    return archive


if __name__ == "__main__":
    sys.exit(main())
