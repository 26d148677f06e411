"""Code blocks and code spans of README and docs: programs parse, and commands, paths and options exist."""

from __future__ import annotations

import ast
import re
import shlex
import textwrap
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import typer
import yaml

from omni_cli.main import app
from support.docs.doc_examples import EXAMPLES, FENCE, PAGES, ROOT, Block, all_blocks, blocks_of

MAKE_TARGETS = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]
FOLDERS = (ROOT, ROOT / "tests", ROOT / "stage_server" / "omni_stage")
"""Paths on pages begin at one of these."""
PATH = re.compile(r"`((?:[\w.-]+/)+(?:[\w-]+(?:\.(?:md|proto|py|sh|toml|yaml))?)?)`")


def parse(block: Block) -> None:
    """Raises SyntaxError or yaml.YAMLError unless a Python or YAML block can be parsed."""
    if block.language == "python":
        compile(textwrap.dedent(block.text), block.place, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if block.language == "yaml":
        list(yaml.safe_load_all(block.text))


def test_programs_and_manifests_parse() -> None:
    for block in all_blocks():
        parse(block)
    with pytest.raises(SyntaxError):
        parse(Block("a.md:1", "python", "x ="))


def find_mistakes(command: str) -> Iterator[str]:
    """Yields the make targets and files that a command names but that do not exist. Raises for options of omnipipe."""
    words = shlex.split(command, comments=True)
    if words[0] == "omnipipe":
        subcommand = COMMANDS[words[1]]
        subcommand.make_context(words[1], [*words[2:]], resilient_parsing=False).close()
    if words[0] == "make":
        yield from {word for word in words[1:] if "=" not in word} - MAKE_TARGETS
    named = {word for flag, word in pairwise(words) if flag in ("-f", "-k", "PIPELINE")}
    named |= {word for word in words if re.match(r"(manifests|helm|docs)/", word)}
    yield from (path for path in named if path != "pipeline.yaml" and not (ROOT / path).exists())


def test_commands_name_what_exists() -> None:
    commands = [(block.place, command) for block in all_blocks() for command in block.commands]
    assert len(commands) > 100
    assert [(place, found) for place, command in commands for found in find_mistakes(command)] == []


def test_mistakes_in_commands_are_found() -> None:
    assert list(find_mistakes("make tea")) == ["tea"]
    assert list(find_mistakes("kubectl apply -f manifests/none.yaml")) == ["manifests/none.yaml"]
    with pytest.raises(Exception, match="--speed"):
        list(find_mistakes("omnipipe generate --speed 2"))


def find_missing(page: Path) -> list[str]:
    """Returns the paths in a page's code spans that do not exist. Paths below folders that we lack are of others."""
    paths = PATH.findall(FENCE.sub("", page.read_text(encoding="utf-8")))
    ours = [path for path in paths if any((folder / path.partition("/")[0]).is_dir() for folder in FOLDERS)]
    return [path for path in ours if not any((folder / path).exists() for folder in FOLDERS)]


def test_paths_exist(tmp_path: Path) -> None:
    current = [page for page in PAGES if page.parent.name not in ("adr", "history")]
    assert {page.name: missing for page in current if (missing := find_missing(page))} == {}
    (tmp_path / "a.md").write_text("`tests/unit/none.py` `tests/unit` `v1/core/of_vllm.py`")
    assert find_missing(tmp_path / "a.md") == ["tests/unit/none.py"]


def test_the_edge_of_the_streaming_page_is_valid() -> None:
    (block,) = (block for block in blocks_of(ROOT / "docs" / "streaming.md") if block.language == "yaml")
    (stage,) = yaml.safe_load(block.text)
    pipeline = yaml.safe_load(EXAMPLES["pipelines-qwen25-omni"])
    assert stage.items() <= pipeline["spec"]["stages"][1].items()
