"""`python -m benchmarks` with an additional case `given`, whose only ratio is the environment variable GIVEN_VALUE."""

from __future__ import annotations

import os
import sys

from benchmarks import __main__ as command
from benchmarks.harness.report import Options, Report
from benchmarks.harness.verdict import Ratio


def measure(options: Options) -> Report:
    value = float(os.environ["GIVEN_VALUE"])
    return Report({"sides": [{"side": "ours", "ratio": value}]}, [Ratio("ours over theirs", value, at_least=0.5)])


if __name__ == "__main__":
    command.CASES["given"] = __name__
    sys.exit(command.main())
