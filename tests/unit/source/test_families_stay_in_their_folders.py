"""Outside a model family's folder, neither imports nor string literals name the family.

Docstrings and comments may use it as an example. Only the folders in SOURCES are checked.
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
# Must not match: names of vLLM's and transformers' classes that begin like a family's name, and sample files' names.
NAMES = re.compile(
    "|".join(
        [r"qwen2[._]5", r"qwen2\.5", *(rf"\b{family.name}/\w" for family in FAMILIES)]
        + [rf"models\.{family.name}\b" for family in FAMILIES]
        + [rf"\b{name}\b" for family in FAMILIES for name in family.model_classes]
    ),
    re.IGNORECASE,
)


def said_in_code(source: str) -> list[str]:
    """Returns a module's imports and string literals, without docstrings and literals with an example ("such as")."""
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
