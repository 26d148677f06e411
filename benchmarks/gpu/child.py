"""Runs a check in its own process and writes OUT/.NAME.json: python -m benchmarks.gpu.child NAME OUT FAMILY [MODEL]"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from benchmarks.gpu.__main__ import choose, make_context
from benchmarks.gpu.checks import run_check


def main() -> int:
    """Run the check. Returns 0 even if the check fails: the results say so."""
    name, out, family, *model = sys.argv[1:]
    context = make_context(Path(out), Path(model[0]) if model else None, family)
    check = next(one for one in choose("all", [name]) if one.name == name)
    rows = [result.to_row() for result in run_check(check, context)]
    (Path(out) / f".{name}.json").write_text(json.dumps(rows), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
