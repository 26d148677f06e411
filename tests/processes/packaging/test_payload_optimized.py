"""Validation in the stage server also works under `python -O`, because no check is an assert statement."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import omni_stage

SOURCE = Path(omni_stage.__file__).parent

PROBE = """
import sys
assert False, "asserts are on"
from omni_stage.errors import CorruptTensorError, InvalidRequestError, InvalidTensorError, NonFiniteTensorError
from omni_stage.engine.requests.conflicts import Feature, check_conflicts
from omni_stage.payloads import AdditionalInformationEntry, AdditionalInformationPayload, PayloadLimits
from omni_proto.tensors import crc32c
from omni_stage.payloads.checks import check_name
from omni_stage.vllm_adapter.diffusion.admission import DiffusionSettings
from omni_stage.errors import ConfigurationError

form = {"tensor_shape": [1], "tensor_dtype": "float32"}
good = form | {"tensor_data": b"1234", "tensor_checksum": crc32c(b"1234")}
AdditionalInformationEntry(**good)
cases = [
    (InvalidTensorError, lambda: AdditionalInformationEntry()),
    (InvalidTensorError, lambda: AdditionalInformationEntry(**(good | {"list_data": [1]}))),
    (InvalidTensorError, lambda: AdditionalInformationEntry(**(good | {"tensor_shape": [2]}))),
    (InvalidTensorError, lambda: AdditionalInformationEntry(**(good | {"tensor_shape": [-1]}))),
    (InvalidTensorError, lambda: AdditionalInformationEntry(**(good | {"tensor_dtype": "load"}))),
    (CorruptTensorError, lambda: AdditionalInformationEntry(**(good | {"tensor_checksum": 1}))),
    (InvalidTensorError, lambda: AdditionalInformationPayload.from_bytes(b"x")),
    (InvalidTensorError, lambda: check_name("a b", PayloadLimits())),
    (NonFiniteTensorError, lambda: AdditionalInformationEntry.from_list([float("nan")])),
    (ConfigurationError, lambda: PayloadLimits(max_entries=0)),
    (ConfigurationError, lambda: DiffusionSettings(max_batch=0)),
    (InvalidRequestError, lambda: check_conflicts([Feature.PROMPT_EMBEDS, Feature.PENALTIES])),
]
for error, call in cases:
    try:
        call()
    except error:
        continue
    sys.exit(f"not refused: {error.__name__} {call}")
print(len(cases), "refused")
"""


def test_validation_holds_without_asserts():
    """Invalid payloads and settings are refused under `python -O`, which removes assert statements."""
    result = subprocess.run(
        [sys.executable, "-O", "-c", PROBE], capture_output=True, text=True, env=dict(os.environ), timeout=120
    )
    assert result.returncode == 0, result.stderr + result.stdout
    assert "12 refused" in result.stdout


def test_no_assert_and_no_unsafe_reader_in_these_parts():
    files = [
        *(SOURCE / "payloads").glob("*.py"),
        *(SOURCE / "vllm_adapter" / "scheduling").glob("*.py"),
        *(SOURCE / "vllm_adapter" / "diffusion").glob("*.py"),
        *(SOURCE / "engine" / "requests").glob("*.py"),
    ]
    assert len(files) > 10
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            assert not isinstance(node, ast.Assert), f"{file}:{node.lineno} asserts"
            names = {alias.name for alias in node.names} if isinstance(node, ast.Import | ast.ImportFrom) else set()
            assert not names & {"pickle", "marshal", "shelve", "dill"}, file
