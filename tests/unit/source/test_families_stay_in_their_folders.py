"""Nothing outside a model family's folder names the family: neither in code nor in what the code says.

Docstrings and comments may give examples. Tests, samples, docs, benchmarks and generated files are left out.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from omni_stage.models.registry import FamilyRegistry

ROOT = Path(__file__).parents[3]
MODELS = ROOT / "stage_server" / "omni_stage" / "models"
FAMILIES = FamilyRegistry().built_in()
SOURCES = sorted(
    file
    for folder in ("cli/omni_cli", "operator/omni_operator", "proto/omni_proto", "scripts", "stage_server/omni_stage")
    for file in (ROOT / folder).rglob("*.py")
    if not any((MODELS / family.name) in file.parents for family in FAMILIES)
)
# Names of vLLM's and transformers' classes that begin alike, and the names of sample files, are no family's name.
NAMES = re.compile(
    "|".join(
        [r"qwen2[._]5", r"qwen2\.5", *(rf"\b{family.name}/\w" for family in FAMILIES)]
        + [rf"models\.{family.name}\b" for family in FAMILIES]
        + [rf"\b{name}\b" for family in FAMILIES for name in family.model_classes]
    ),
    re.IGNORECASE,
)


def said_in_code(source: str) -> list[str]:
    """Imports and text of a module, without its docstrings and without text that gives an example ("such as")."""
    tree = ast.parse(source)
    found: list[str] = []
    bodies = [body for node in ast.walk(tree) if isinstance(body := getattr(node, "body", None), list)]
    docstrings = {id(statement.value) for body in bodies for statement in body if isinstance(statement, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            found += [] if "such as" in node.value else [node.value]
        elif isinstance(node, ast.ImportFrom):
            found += [node.module or "", *(f"{node.module}.{name.name}" for name in node.names)]
        elif isinstance(node, ast.Import):
            found += [name.name for name in node.names]
    return found


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: str(file.relative_to(ROOT)))
def test_no_family_is_named(file: Path) -> None:
    assert [text for text in said_in_code(file.read_text(encoding="utf-8")) if NAMES.search(text)] == []


def test_the_check_sees_what_it_is_for() -> None:
    source = '"""qwen2_5_omni/thinker"""\nimport omni_stage.models.generic.llm\nx = "Qwen2.5-Omni"\n'
    assert [bool(NAMES.search(text)) for text in said_in_code(source)] == [True, True]
