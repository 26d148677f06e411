"""Prints the light unit tests, which `make check` runs: files of tests/unit whose imports reach neither torch nor vLLM.

    python tools/light_tests.py [PART/PARTS]

Imports are followed through our own packages and the tests' helpers. Imports inside functions do not count, unless the
test file itself has them: they run only when they are called.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("proto", "kube", "operator", "stage_server", "gateway", "cli", "tests", ".")
HEAVY = {"torch", "transformers", "vllm", "xgrammar"}
"""Packages that only vLLM brings."""
CHOSEN = ("proto", "kube", "operator", "gateway", "cli", "docs", "helm")
"""Folders of tests/unit. Those of the stage server are left to `make test`: most of their files need torch."""


def list_light(chosen: tuple[str, ...] = CHOSEN) -> list[str]:
    """Returns the light files of the chosen folders of tests/unit, as paths from the repository's root."""
    files = [file for name in chosen for file in sorted((ROOT / "tests" / "unit" / name).rglob("test_*.py"))]
    quick = [
        file for file in files if not file.stem.endswith("_properties")
    ]  # those simulate clusters for half a minute
    return [file.relative_to(ROOT).as_posix() for file in quick if not is_heavy(file)]


def is_heavy(test: Path) -> bool:
    """Says whether importing or running a test file imports a package of HEAVY, as far as its source shows."""
    tree = ast.parse(test.read_text(encoding="utf-8"))
    waiting = [*imported(ast.walk(tree))]
    seen = set[str]()
    while waiting:
        name = waiting.pop()
        if name.partition(".")[0] in HEAVY:
            return True
        if name not in seen:
            seen.add(name)
            waiting += imports_of(name)
    return False


@cache
def imports_of(name: str) -> tuple[str, ...]:
    """Returns the modules that one of our modules imports when it is imported itself."""
    path = name.replace(".", "/")
    for folder in FOLDERS:
        for file in (ROOT / folder / f"{path}.py", ROOT / folder / path / "__init__.py"):
            if file.is_file():
                return tuple(imported(at_import(ast.parse(file.read_text(encoding="utf-8")))))
    return ()


def at_import(tree: ast.AST) -> Iterator[ast.AST]:
    """Yields the nodes that run when a module is imported: not those of functions and of `if TYPE_CHECKING:`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node
        yield from at_import(node)


def imported(nodes: Iterator[ast.AST]) -> Iterator[str]:
    """Yields the names of the modules that import statements name, with their packages."""
    for node in nodes:
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        for name in names:
            parts = name.split(".")
            yield from (".".join(parts[:length]) for length in range(1, len(parts) + 1))


if __name__ == "__main__":
    part, parts = map(int, sys.argv[1].split("/")) if len(sys.argv) > 1 else (1, 1)
    sys.stdout.write("\n".join(list_light()[part - 1 :: parts]) + "\n")
