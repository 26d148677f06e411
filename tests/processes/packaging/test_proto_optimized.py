"""The tests of the codec and of the client's arguments also pass under `python -O`: no check is an assert statement."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import omni_proto
from support.processes.polling import PATIENCE_S

SUITES = (
    "tensors/test_tensor_schema.py",
    "tensors/test_edge_assembly.py",
    "tensors/test_tensor_assembly.py",
    "client/test_client_media.py",
    "client/test_client_reply_forms.py",
    "client/test_client_requests.py",
    "client/test_client_results.py",
)


@pytest.mark.full  # test_no_assert_and_no_unsafe_reader_in_the_contracts shows that `-O` removes nothing
def test_validation_holds_without_asserts() -> None:
    """The suites check refusals with pytest.raises, which `-O` does not remove."""
    suites = Path(__file__).parents[2] / "unit" / "proto"
    result = subprocess.run(
        [
            sys.executable,
            "-O",
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            *(str(suites / name) for name in SUITES),
        ],
        capture_output=True,
        text=True,
        cwd=suites.parents[2],
        env={key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "COV_"))},
        timeout=200,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-1000:]
    assert " passed" in result.stdout


def test_no_assert_and_no_unsafe_reader_in_the_contracts() -> None:
    files = [path for path in Path(omni_proto.__file__).parent.rglob("*.py") if "_pb2" not in path.name]
    assert len(files) > 15
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            assert not isinstance(node, ast.Assert), f"{file}:{node.lineno} asserts"
            assert not (isinstance(node, ast.Name) and node.id == "__debug__"), f"{file}:{node.lineno}"
            names = {alias.name for alias in node.names} if isinstance(node, ast.Import | ast.ImportFrom) else set()
            assert not names & {"pickle", "marshal", "shelve", "dill"}, file


def test_the_client_imports_nothing_heavy() -> None:
    probe = (
        "import sys, omni_proto.client; print([m for m in ('numpy', 'pydantic', 'yaml', 'torch') if m in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    assert result.stdout.strip() == "[]"
