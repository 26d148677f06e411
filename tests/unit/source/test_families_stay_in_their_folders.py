"""Outside a model family's folder, neither imports nor string literals name the family.

Docstrings and comments may use it as an example. Only the folders in SOURCES are checked.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

from omni_stage.models.registry import FamilyRegistry

ROOT = Path(__file__).parents[3]
MODELS = ROOT / "stage_server" / "omni_stage" / "models"
FAMILIES = FamilyRegistry().built_in()
SOURCES = sorted(
    file
    for folder in ("cli", "gateway", "kube", "operator", "proto", "stage_server", "tools")
    for file in (ROOT / folder).rglob("*.py")
    if not any((MODELS / family.name) in file.parents for family in FAMILIES)
    and "observability" not in file.parts  # it registers the metrics of built-in components
    # `omnipipe plan` computes with the tables of paced engines.
    and file not in (ROOT / "cli/omni_cli/commands/plan.py", ROOT / "cli/omni_cli/plan_options.py")
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


def find_texts(source: str) -> list[str]:
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


def test_no_family_is_named() -> None:
    assert len(SOURCES) > 300
    texts = [
        (file.relative_to(ROOT), text) for file in SOURCES for text in find_texts(file.read_text(encoding="utf-8"))
    ]
    assert [(str(path), text) for path, text in texts if NAMES.search(text)] == []


def test_names_in_code_are_found() -> None:
    source = '"""qwen2_5_omni/thinker"""\nimport omni_stage.models.generic.llm\nx = "Qwen2.5-Omni"\n'
    assert [bool(NAMES.search(text)) for text in find_texts(source)] == [True, True]
