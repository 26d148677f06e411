"""`make house`: the size and shape of this repository against the limits that we set ourselves.

    git ls-files -> files -> figures, one per line: NAME VALUE LIMIT, with * where the limit is exceeded

`--list` also names what is counted: modules to merge, classes of one name, words in names. Returns 1 if a limit is
exceeded. docs/architecture.md says where the limits come from.
"""

from __future__ import annotations

import ast
import re
import statistics
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tools.check_words import WORDS, find_identifiers, read_rules

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("proto", "stage_server", "kube", "operator", "gateway", "cli")
PRODUCT = (*PACKAGES, "tools")
CHECKS = ("checks", "benchmarks")
MAXIMUM_LINES = 400


@dataclass(frozen=True)
class File:
    """A file that git knows."""

    path: str

    @cached_property
    def text(self) -> str:
        return (ROOT / self.path).read_text(encoding="utf-8", errors="replace")

    @cached_property
    def lines(self) -> int:
        """The lines as `wc -l` counts them. Links have none, nor have pictures and archives (by git's rule: a NUL)."""
        return 0 if (ROOT / self.path).is_symlink() or "\0" in self.text[:8000] else self.text.count("\n")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def module(self) -> str:
        """The dotted name that imports use."""
        parts = Path(self.path).with_suffix("").parts
        parts = parts[1:] if parts[0] in PACKAGES else parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    def under(self, *folders: str) -> bool:
        return self.path.startswith(tuple(f"{folder}/" for folder in folders))

    @property
    def head(self) -> int:
        """The lines before the first statement that is neither the docstring nor an import."""
        body = self.tree.body
        rest = [node for node in body if not _is_head(node)]
        return (
            (min([rest[0].lineno, *(d.lineno for d in getattr(rest[0], "decorator_list", ()))]) - 1)
            if rest
            else (self.lines)
        )


def _is_head(node: ast.stmt) -> bool:
    typing_only = isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return typing_only or docstring or isinstance(node, ast.Import | ast.ImportFrom)


def list_files() -> list[File]:
    output = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [File(path) for path in output.split("\0") if path and (ROOT / path).exists()]


def find_importers(modules: list[File]) -> dict[str, set[str]]:
    """Returns the modules that import each module: name -> names."""
    known = {file.module for file in modules}
    importers = defaultdict[str, set[str]](set)
    for file in modules:
        for node in ast.walk(file.tree):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [
                    name if (name := f"{node.module}.{alias.name}") in known else node.module for alias in node.names
                ]
            for name in names:
                if name in known and name != file.module:
                    importers[name].add(file.module)
    return importers


def list_mergeable(modules: list[File], others: list[File]) -> list[str]:
    """Returns the modules with one importer, beside them, where both fit in one file.

    A module that a test or a program imports too is a unit of its own. Manifests are read without torch. Workers are
    programs of their own.
    """
    sizes = {file.module: file for file in modules}
    found = []
    for name, importers in find_importers([*modules, *others]).items():
        if name not in sizes or name.endswith((".manifest", "worker")):
            continue
        importer = next(iter(importers))
        if importer not in sizes:
            continue
        packages = [sizes[module].path.endswith("/__init__.py") for module in (name, importer)]
        if len(importers) == 1 and not any(packages) and name.rpartition(".")[0] == importer.rpartition(".")[0]:
            total = sizes[name].lines + sizes[importer].lines
            if total <= MAXIMUM_LINES:
                found.append(f"{sizes[name].path} -> {Path(sizes[importer].path).name}: {total} lines")
    return sorted(found)


def list_shared_classes(modules: list[File]) -> list[str]:
    """Returns the public classes whose name is defined in more than one package."""
    homes = defaultdict[str, set[str]](set)
    for file in modules:
        for node in file.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].add(file.module.partition(".")[0])
    return sorted(f"{name}: {', '.join(sorted(places))}" for name, places in homes.items() if len(places) > 1)


def count_words(files: list[File]) -> int:
    return sum(len(file.text.split()) for file in files if file.path.endswith(".md"))


def measure(files: list[File]) -> Iterator[tuple[str, int | float, int | float, list[str]]]:
    """Yields (name, value, limit, what is counted). The limit of a name that ends with "minimum" is a lower bound."""
    python = [file for file in files if file.path.endswith(".py")]
    product = [file for file in python if file.under(*PRODUCT)]
    modules = [file for file in product if file.under(*PACKAGES) and "_pb2" not in file.path]
    others = [file for file in python if file not in product]
    real = [file for file in modules if not (file.path.endswith("/__init__.py") and file.lines <= 2)]
    programs = [file for file in python if file.under(*CHECKS)]
    results = [file for file in files if "/results/" in file.path and not file.path.endswith(".py")]
    yield "repository, lines", sum(file.lines for file in files), 240_000, []
    yield "product, lines of Python", sum(file.lines for file in product), 79_000, []
    yield "product, modules", len(product), 590, []
    tests = [file for file in files if file.under("tests")]
    yield "tests, lines", sum(file.lines for file in tests), 104_000, []
    yield "goldens, lines", sum(file.lines for file in files if file.under("tests/golden")), 5_700, []
    yield "benchmarks and checks, lines of Python", sum(file.lines for file in programs), 15_000, []
    yield "results, lines", sum(file.lines for file in results), 6_500, []
    pictures = [file.path for file in results if file.path.endswith((".png", ".svg"))]
    yield "results, pictures", len(pictures), 0, pictures
    yield "files over 400 lines", len(found := [f.path for f in modules if f.lines > MAXIMUM_LINES]), 0, found
    yield "lines of a module, median, minimum", statistics.median(file.lines for file in real), 120, []
    yield "modules to merge", len(found := list_mergeable(modules, others)), 4, found
    yield "__init__.py of two lines or fewer", len(modules) - len(real), 67, []
    for package in PACKAGES:
        inside = [file for file in modules if file.under(package)]
        share = 100 * sum(file.head for file in inside) / sum(file.lines for file in inside)
        yield f"{package}, percent of lines in heads", round(share, 1), 15.5, []
    yield "files with cache_salt", len(f := [f.path for f in modules if re.search(r"\bcache_salt\b", f.text)]), 11, f
    for what, pattern, limit in (
        ("class GenerateOptions", r"^class GenerateOptions\b", 0),
        ("class InvalidTensorError", r"^class InvalidTensorError\b", 1),
        ("excepts for both packages", r"except \((OmniStageError, OmniProtoError|OmniProtoError, OmniStageError)\)", 0),
        ("files with a table of dtypes", r'"bfloat16": ', 1),
        ("files with 0x7F80", r"(?i)\b0x7f80\b", 1),
        ("modules that import google_crc32c", r"(?:import |from |load\(\")google_crc32c\b", 1),
    ):
        yield what, len(found := [f.path for f in modules if re.search(pattern, f.text, re.MULTILINE)]), limit, found
    yield "classes defined in several packages", len(found := list_shared_classes(modules)), 18, found
    folders = Counter(Path(file.path).parent.name for file in modules if file.path.endswith("/__init__.py"))
    yield "folders named media", folders["media"], 3, []
    rules = read_rules(WORDS.read_text(encoding="utf-8"))[1]
    for where, group in (("product", product), ("tests and checks", [f for f in python if f not in product])):
        found = [str(finding) for file in group for finding in find_identifiers(file.path, file.text, rules)]
        yield f"words in identifiers, {where}", len(found), 0, found
    servicer = next(file for file in modules if file.path.endswith("service/request/servicer.py"))
    imports = [node for node in servicer.tree.body if isinstance(node, ast.ImportFrom)]
    ours = [alias.name for node in imports if (node.module or "").startswith("omni_") for alias in node.names]
    yield "our own names that servicer.py imports", len(ours), 35, ours
    pages = [file for file in files if file.path.endswith(".md")]
    yield "pages", len(pages), 70, []
    yield "pages, words written by hand", count_words([f for f in pages if not f.under("docs/reference")]), 67_000, []


def main() -> int:
    exceeded = 0
    for name, value, limit, counted in measure(list_files()):
        bad = value < limit if name.endswith("minimum") else value > limit
        exceeded += bad
        sys.stdout.write(f"{'*' if bad else ' '} {name:44} {value:>9,} {limit:>9,}\n")
        if "--list" in sys.argv[1:]:
            sys.stdout.writelines(f"      {line}\n" for line in counted)
    return 1 if exceeded else 0


if __name__ == "__main__":
    sys.exit(main())
