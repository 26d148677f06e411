"""Scripts of the repository, as modules."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def sbom() -> ModuleType:
    """Returns tools/sbom.py."""
    file = Path(__file__).parents[3] / "tools" / "sbom.py"
    spec = importlib.util.spec_from_file_location("sbom", file)
    assert spec
    assert spec.loader
    module = sys.modules["sbom"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
