"""Runs the mutations on a copy of the last commit: `PYTHONPATH=tests python -m checks.mutation [--only NAME]...`.

Fails if more than MAY_ESCAPE mutations pass the tests that should notice them.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from checks.mutation.table import ROOT, Mutation, read_table

MAY_ESCAPE = 2
BOUND_S = 900.0
"""Time limit for the tests of one mutation, in seconds."""
PACKAGES = ("proto", "kube", "operator", "stage_server", "gateway", "cli", "tests")
TESTS_FAILED = 1
"""pytest's exit code for failed tests. Any other code except 0 means that the tests did not run."""


class MutationRunError(RuntimeError):
    """The tests of a mutation did not run, or they fail even without a mutation."""


def copy_commit(folder: Path) -> None:
    """Writes the files of the last commit into the folder."""
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True)
    subprocess.run(["tar", "-x"], cwd=folder, check=True, input=archive.stdout)


def run_tests(copy: Path, tests: Iterable[str]) -> int:
    """Runs the tests in the copy. Returns pytest's exit code, or TESTS_FAILED if they exceed the time limit."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    path = os.pathsep.join(str(copy / package) for package in PACKAGES)
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command, cwd=copy, env=environment, timeout=BOUND_S, stdout=subprocess.DEVNULL, check=False
        )
    except subprocess.TimeoutExpired:
        return TESTS_FAILED  # tests that hang because of the mutation have noticed it too
    return done.returncode


def is_caught(copy: Path, mutation: Mutation) -> bool:
    """Applies the mutation to the copy, runs the tests and restores the file. Returns whether a test failed.

    Raises StaleMutationError or MutationRunError.
    """
    file = copy / mutation.file
    source = file.read_text(encoding="utf-8")
    file.write_text(mutation.apply(source), encoding="utf-8")
    try:
        code = run_tests(copy, mutation.tests)
    finally:
        file.write_text(source, encoding="utf-8")
    if code not in (0, TESTS_FAILED):
        raise MutationRunError(f"{mutation.name}: pytest ended with {code}; is the changed code still valid Python?")
    return code == TESTS_FAILED


def main() -> int:
    """Returns the exit code: 0 if at most MAY_ESCAPE mutations escaped. Raises as `is_caught` does."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="this mutation alone (repeatable)")
    args = parser.parse_args()
    table = read_table()
    if unknown := sorted(set(args.only) - {mutation.name for mutation in table}):
        parser.error(f"--only: no mutation {', '.join(unknown)}; mutations.toml lists them")
    mutations = [mutation for mutation in table if not args.only or mutation.name in args.only]
    escaped: list[str] = []
    with tempfile.TemporaryDirectory(prefix="omni-mutation-") as folder:
        copy = Path(folder)
        copy_commit(copy)
        for tests in sorted({mutation.tests for mutation in mutations}):
            if run_tests(copy, tests):
                raise MutationRunError(f"{' '.join(tests)} fail or do not run without any mutation")
        for mutation in mutations:
            began = time.monotonic()
            caught = is_caught(copy, mutation)
            escaped += [] if caught else [mutation.name]
            print(
                f"{'caught ' if caught else 'ESCAPED'} {time.monotonic() - began:6.1f} s  {mutation.name}", flush=True
            )
    print(f"{len(mutations) - len(escaped)} of {len(mutations)} mutations caught")
    return int(len(escaped) > MAY_ESCAPE)


if __name__ == "__main__":
    sys.exit(main())
