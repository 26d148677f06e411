"""The committed stubs match the .proto files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
STUBS = ROOT / "proto" / "omni_proto" / "stage" / "v1"


def test_stubs_are_fresh(tmp_path: Path) -> None:
    subprocess.run(
        ["sh", str(ROOT / "proto" / "generate.sh"), str(tmp_path)],
        check=True,
        env={**os.environ, "PYTHON": sys.executable},
        timeout=120,
    )
    fresh = {path.name: path.read_bytes() for path in (tmp_path / "omni_proto" / "stage" / "v1").iterdir()}
    committed = {path.name: path.read_bytes() for path in STUBS.iterdir() if "_pb2" in path.name}
    assert fresh.keys() == committed.keys()
    stale = [name for name in fresh if fresh[name] != committed[name]]
    assert not stale, f"run `make proto`: {stale}"
